"""The layout of the packages: import contracts see a folder only if it is a package."""

from __future__ import annotations

import re
from pathlib import Path

ROOTS = [Path(__file__).parents[1] / folder for folder in ("src/exportdoctor", "tui/exportdoctor_tui")]


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {file.parent for root in ROOTS for file in root.rglob("*.py")}
    assert len(folders) > 20
    assert [folder.name for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_worked_examples_name_files_that_exist_and_as_many_as_they_say() -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    examples = re.findall(r"^### [^\n]*: (\d) files?$\n(.*?)(?=^##)", text, flags=re.M | re.S)
    assert len(examples) >= 6
    for count, steps in examples:
        assert len(re.findall(r"^\d\. ", steps, flags=re.M)) == int(count) or count == "1"
        named = re.findall(r"`((?:src|tests|fixtures)/[\w./-]+)`", steps)
        assert named
        absent = [name for name in named if "NAME" not in name and not (Path(__file__).parents[1] / name).exists()]
        assert absent == []

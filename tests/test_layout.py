"""The layout of the packages: import contracts see a folder only if it is a package."""

from __future__ import annotations

from pathlib import Path

ROOTS = [Path(__file__).parents[1] / folder for folder in ("src/exportdoctor", "tui/exportdoctor_tui")]


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {file.parent for root in ROOTS for file in root.rglob("*.py")}
    assert len(folders) > 20
    assert [folder.name for folder in folders if not (folder / "__init__.py").exists()] == []

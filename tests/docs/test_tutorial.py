"""The commands of docs/tutorial.md print what the page shows."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
FENCES = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)


def shown() -> dict[str, str]:
    """Each command of the page that is followed by a block, with that block."""
    blocks = FENCES.findall((DOCS / "tutorial.md").read_text())
    pairs = itertools.pairwise(blocks)
    return {one[1].strip(): other[1] for one, other in pairs if not one[0] and other[0] in ("text", "python")}


def normalise(text: str) -> list[str]:
    """Its words, without what differs between two runs: times, sizes, ids of runs, the log's path, line breaks.

    Nor does it matter whether torch is built for CUDA: both run on the CPU.
    """
    text = re.sub(r"^ *Log:.*\n(?: {6}.*\n)*", "", text, flags=re.M)
    text = re.sub(r"\d{8}-\d{6}-\S+", "RUN", text)
    text = re.sub(r"\btorch (\S+?)\+\w+", r"torch \1", text)
    text = re.sub(r"\d+(?:\.\d+)?(?:e[+-]\d+)?", "N", text)
    text = re.sub(r"\bN min N s\b", "N s", text)  # how long it took, on a slow machine
    return text.split()


COMMANDS = [
    "exportdoctor scan my_model.py:build",
    "exportdoctor export my_model.py:build --to pt2 -o model.pt2",
    "exportdoctor repro F1",
]


def check(commands: list[str], folder: Path) -> None:
    shutil.copy(DOCS / "tutorial" / "my_model.py", folder)
    environment = {**os.environ, "COLUMNS": "108", "EXPORTDOCTOR_HOME": str(folder / "home")}
    for command in commands:
        words = [sys.executable, "-m", *command.split()]
        found = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
        assert found.returncode in (0, 1), found.stderr
        assert normalise(found.stdout.replace(f"{folder}/", "")) == normalise(shown()[command]), command


@pytest.mark.long
def test_scan_and_export_print_what_the_page_shows(tmp_path: Path) -> None:
    assert sorted(shown()) == sorted(COMMANDS)
    check(COMMANDS[:2], tmp_path)


@pytest.mark.night
def test_all_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    check(COMMANDS, tmp_path)


@pytest.mark.night
def test_the_readmes_sample_is_what_a_scan_prints(tmp_path: Path) -> None:
    """But for numbers, and for the second finding, which the page leaves out."""
    blocks = FENCES.findall((DOCS.parent / "README.md").read_text())
    (sample,) = (text for _, text in blocks if text.startswith("Qwen2.5-VL-3B · "))
    words = [sys.executable, "-m", "exportdoctor", "scan", "Qwen2.5-VL-3B", "--part", "vision"]
    environment = {**os.environ, "COLUMNS": "120", "EXPORTDOCTOR_HOME": str(tmp_path)}
    printed = normalise(subprocess.run(words, env=environment, capture_output=True, text=True, timeout=900).stdout)
    begin, end = (normalise(part) for part in sample.split("…\n"))
    assert printed[: len(begin)] == begin
    assert printed[-len(end) :] == end

"""docs/python.md is what docs/tutorial/notebook.ipynb shows when it is run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "write_notebook.py"))
PAGE = ROOT / "docs" / "python.md"


def test_the_page_has_the_cells_of_the_notebook() -> None:
    cells = nbformat.read(TOOL["NOTEBOOK"], as_version=4).cells  # type: ignore[no-untyped-call]
    page = PAGE.read_text()
    assert all(cell.source in page for cell in cells)
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.night
def test_the_notebook_shows_what_the_page_shows(tmp_path: Path) -> None:
    """But for numbers, which differ from run to run."""
    notebook = TOOL["run_notebook"](tmp_path)
    assert _words(TOOL["page"](notebook)) == _words(PAGE.read_text())
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert "Pool.forward" in next(one["data"]["text/html"] for one in shown if "text/html" in one.get("data", {}))
    progress = "".join(one["text"] for one in shown if one.get("name") == "stderr")
    assert "modules captured" in progress
    assert "Warning" not in progress


def _words(text: str) -> list[str]:
    return re.sub(r"\d+(?:\.\d+)?(?:e[+-]\d+)?", "N", text).split()

"""Writes docs/python.md: docs/tutorial/notebook.ipynb, run by nbclient, with what its cells show.

    PYTHONPATH=src python tools/write_notebook.py

The page is not edited by hand.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).parents[1] / "docs"
NOTEBOOK = DOCS / "tutorial" / "notebook.ipynb"
PAGE = DOCS / "python.md"
_END = "This page is generated from [tutorial/notebook.ipynb](tutorial/notebook.ipynb): `make docs`.\n"


def run_notebook(home: Path) -> Any:
    """The notebook with the outputs of its cells; runs are kept in `home`. Raises CellExecutionError."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    environment = {**os.environ, "EXPORTDOCTOR_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    client.execute(env=environment)
    return notebook


def page(notebook: Any) -> str:
    """The notebook as Markdown; what is written to stderr, such as progress, is left out."""
    blocks = []
    for cell in notebook.cells:
        blocks.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        blocks += filter(None, map(_shown, cell.get("outputs", ())))
    return "\n\n".join((*blocks, _END)).replace(f"{NOTEBOOK.parent}/", "")


def _shown(output: Any) -> str:
    data = output.get("data", {})
    if "text/markdown" in data:
        return "".join(data["text/markdown"]).strip()
    text = data.get("text/plain", "") or (output.get("text", "") if output.get("name") == "stdout" else "")
    return f"```text\n{text.rstrip()}\n```" if text else ""


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as home:
        PAGE.write_text(page(run_notebook(Path(home))), encoding="utf-8")


if __name__ == "__main__":
    main()

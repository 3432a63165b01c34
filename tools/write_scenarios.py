"""Writes docs/scenarios.md: each construct of fixtures/constructs, what each exporter makes of it, and why.

    PYTHONPATH=src:tests/support python tools/write_scenarios.py

The page is not edited by hand. Each answer is that of a scan; that of decompositions is
`torch.export.export(...).run_decompositions()` in a process of its own.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from exportdoctor.core.run.report import Report
from exportdoctor.report.wording import findings as wording
from scanning import scan_ref

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scenarios.md"
CONSTRUCTS = ROOT / "fixtures" / "constructs"
COLUMNS: dict[str, dict[str, Any]] = {
    "export": {"exporter": "export"},
    "strict": {"exporter": "export-strict"},
    "TorchScript": {"exporter": "torchscript"},
    "ONNX": {"exporter": "export", "to": "ort"},
}
_HEAD = """# Scenarios: which construct each exporter takes

Each row is one construct, in a module of a few lines ([fixtures/constructs](../fixtures/constructs)); each column
is a way to export it, on torch {torch}. `✓` exports, `✗` fails with the kind that is named.

- *export* and *strict* are `torch.export.export` with `strict=False` and `strict=True`
- *TorchScript* is `torch.onnx.export(..., dynamo=False)`. It traces: where a construct reads a tensor's value, `✓`
  means that this one value is fixed in the file
- *decompositions* is `run_decompositions()` on the exported program
- *ONNX* is `torch.onnx.export(..., dynamo=True)`; the file was run in ONNX Runtime and gave eager's numbers

This page is generated: `make docs`.
"""


class Row(NamedTuple):
    """A construct, the kind of its failure by column (empty where it passes), and an explanation of each kind."""

    name: str
    title: str
    answers: dict[str, str]
    why: dict[str, str]


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(list(rows())), encoding="utf-8")


def constructs() -> Iterator[tuple[Path, str, str]]:
    """File, factory and title of each construct."""
    for file in sorted(CONSTRUCTS.glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.returns is not None and ast.unparse(node.returns) == "Case":
                yield file, node.name, ast.get_docstring(node) or node.name


def rows() -> Iterator[Row]:
    """The row of each construct, by real scans."""
    for file, name, title in constructs():
        yield row(file, name, title)


def row(file: Path, name: str, title: str) -> Row:
    """The row of one construct."""
    answers: dict[str, str] = {}
    why: dict[str, str] = {}
    for column, how in COLUMNS.items():
        kind, said = _answer(scan_ref(f"{file}:{name}", **how))
        answers[column] = kind
        if kind:
            why.setdefault(kind, said)
        if column == "TorchScript":
            answers["decompositions"] = answers["export"] or _decomposed(file, name)
    return Row(name, title, answers, why)


def page(found: list[Row]) -> str:
    """The text of the page."""
    import torch

    parts = [_HEAD.format(torch=torch.__version__.partition("+")[0])]
    for file in sorted({path for path, *_ in constructs()}):
        names = {name for path, name, _ in constructs() if path == file}
        parts += [f"## {file.stem.replace('_', ' ').capitalize()}", *table([one for one in found if one.name in names])]
    return "\n".join(parts) + "\n"


def table(found: list[Row]) -> list[str]:
    """The Markdown lines of a table of these rows, and of what is said of their failures."""
    columns = list(found[0].answers)
    lines = ["", f"| construct | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
    for one in found:
        cells = (f"✗ {_linked(kind)}" if kind else "✓" for kind in one.answers.values())
        lines.append(f"| {one.title} | {' | '.join(cells)} |")
    lines.append("")
    for one in found:
        for kind, said in one.why.items():
            where = [column for column, answer in one.answers.items() if answer == kind]
            lines.append(f"- {one.title}, {', '.join(where)}: {said}")
    return [*lines, ""]


def _linked(kind: str) -> str:
    return f"[{kind}](failures/{kind}.md)" if (ROOT / "docs" / "failures" / f"{kind}.md").exists() else kind


def _answer(report: Report) -> tuple[str, str]:
    """The kind of the first finding, and its line and message; empty where there is none."""
    if not report.findings:
        return ("", "") if report.parts[0].verdict == "passes" else (report.parts[0].verdict, "no finding")
    finding = report.findings[0]
    line = f"`{finding.source.strip()}` — " if finding.source else ""
    message = re.sub(r" at 0x[0-9a-f]+", "", wording.exception_line(finding)).replace("|", "\\|").replace("<", "&lt;")
    return str(finding.kind), f"{line}{message}"


def _decomposed(file: Path, name: str) -> str:
    """The exception with which decompositions end in a child process; empty where they pass."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            os.write(writer, _decompose(file, name).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(pid, 0)
    return said


def _decompose(file: Path, name: str) -> str:
    import runpy

    import torch

    module, args, kwargs, shapes = runpy.run_path(str(file))[name]()
    try:
        torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False).run_decompositions()
    except Exception as error:
        return type(error).__name__
    return ""


if __name__ == "__main__":
    main()

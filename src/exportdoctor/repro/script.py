"""The form of a finished script: a header that says what, where and how, and then the code."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from exportdoctor.core.finding import Finding

_WIDTH = 110
_TOLD = ("python", "platform", "torch", "transformers", "cuda")


def imports_of(source: str) -> tuple[str, ...]:
    """The top-level packages that a script imports, Python's own left out."""
    import sys

    names: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names[node.module.partition(".")[0]] = None
    return tuple(name for name in names if name not in sys.stdlib_module_names)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the head of a script tells. `expected` is what the script shows in a fresh process, in one line."""

    finding: Finding
    expected: str
    environment: Mapping[str, str]
    made_by: str
    remarks: tuple[str, ...] = ()


def with_header(source: str, header: Header) -> str:
    """The script as it is handed out."""
    used = set(imports_of(source))
    versions = ", ".join(
        f"{name} {value}" if name != "platform" else value
        for name, value in header.environment.items()
        if name in _TOLD and (name != "transformers" or "transformers" in used)
    )
    lines = [
        *_comment(f"Reduced from {_where(header.finding)}"),
        *_comment(f"Fails with {header.expected}"),
        *_comment(f"Environment: {versions}; all of it: python -m torch.utils.collect_env"),
        *(line for remark in header.remarks for line in _comment(f"Note: {remark}")),
        *_comment(f"Made by: {header.made_by}"),
    ]
    return "\n".join([*lines, *spaced(source), ""])


def _where(finding: Finding) -> str:
    place = f"{finding.function}, {tail_of(finding.file)}:{finding.line}" if finding.function and finding.file else ""
    module = f"{finding.module or 'the root'} ({finding.module_class})"
    return f"{place}, called by {module}" if place else module


def tail_of(path: str) -> str:
    """A path as others know it: from the package on."""
    for folder in ("site-packages/", "dist-packages/"):
        if folder in path:
            return path.rpartition(folder)[2]
    return path.rpartition("/")[2]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), _WIDTH, initial_indent="# ", subsequent_indent="#   ")


def spaced(source: str) -> list[str]:
    """The code, with no more empty lines than one in a row, and none below the head of a class."""
    lines: list[str] = []
    for line in source.strip("\n").splitlines():
        if line.strip() or (lines and lines[-1].strip() and not lines[-1].startswith("class ")):
            lines.append(line.rstrip())
    return lines

"""The form of a finished script: a header with what fails, where it comes from and how it was made, then the code."""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from exportdoctor.core.failure.finding import Finding
from exportdoctor.report import wording

_WIDTH = 110
_SHOWN = ("python", "platform", "torch", "transformers", "cuda")
_TO_ONNX = "torch.onnx.export("
_SHOWN_OF_ONNX = ("onnxscript", "onnxruntime", "onnxruntime-gpu")


def imports_of(source: str) -> tuple[str, ...]:
    """The top-level packages that a script imports, Python's own left out."""
    names: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names[node.module.partition(".")[0]] = None
    return tuple(name for name in names if name not in sys.stdlib_module_names)


def packages_of(source: str) -> tuple[str, ...]:
    """The packages whose versions matter to a script: what it imports, and what torch.onnx uses."""
    return (*imports_of(source), *(_SHOWN_OF_ONNX if _TO_ONNX in source else ()))


@dataclass(frozen=True, kw_only=True)
class Header:
    """The head of a script. `expected`: its result in a fresh process, in one line."""

    origin: str
    expected: str
    environment: Mapping[str, str]
    made_by: str
    remarks: tuple[str, ...] = ()


def with_header(source: str, header: Header) -> str:
    """The script as it is handed out."""
    versions = versions_of(header.environment, packages_of(source))
    sentences = wording.script_head(
        origin=header.origin,
        expected=header.expected,
        versions=versions,
        remarks=header.remarks,
        made_by=header.made_by,
    )
    lines = [line for sentence in sentences for line in comment_lines(sentence)]
    return "\n".join([*lines, *limit_blank_lines(source), ""])


def versions_of(environment: Mapping[str, str], packages: Collection[str]) -> str:
    """The versions that matter to a script with these packages, in one line."""
    return ", ".join(
        f"{name} {value}" if name != "platform" else value
        for name, value in environment.items()
        if (name in _SHOWN and name != "transformers") or name in packages
    )


def origin_of(finding: Finding) -> str:
    """Where the script of a finding comes from."""
    return wording.script_origin(finding, tail_of(finding.file or ""))


def tail_of(path: str) -> str:
    """A path as others know it: from the package on."""
    for folder in ("site-packages/", "dist-packages/"):
        if folder in path:
            return path.rpartition(folder)[2]
    return path.rpartition("/")[2]


def comment_lines(text: str) -> list[str]:
    """A sentence of the head."""
    return textwrap.wrap(" ".join(wording.plain(text).split()), _WIDTH, initial_indent="# ", subsequent_indent="#   ")


def limit_blank_lines(source: str) -> list[str]:
    """The code, with no more empty lines than one in a row, none below the head of a class, and one after a body."""
    lines: list[str] = []
    for line in source.strip("\n").splitlines():
        if lines and lines[-1].startswith(" ") and line[:1].strip(" )]}"):
            lines.append("")
        if line.strip() or (lines and lines[-1].strip() and not lines[-1].startswith("class ")):
            lines.append(line.rstrip())
    return lines


def code_lines(source: str) -> int:
    """Lines of code: neither empty ones nor comments."""
    return sum(1 for line in source.splitlines() if line.strip() and not line.lstrip().startswith("#"))

"""What form a branch has that failed, by its syntax: a loop, one on the module's own state, or one that writes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.read_file import read_file

StatementForm = Literal["", "while", "reads_state", "writes_state"]
"""`reads_state`: its condition reads nothing but attributes of `self`. `writes_state`: its body writes some."""

_READS = frozenset({"item", "any", "all", "numel", "sum", "max", "min", "abs", "mean", "bool", "int", "float"})


def statement_form(finding: Finding) -> StatementForm:
    """The form of the branch at a finding's line; empty for any other statement, and where its source is not known."""
    branch = _in_file(finding) or _of_line(finding.source or "")
    if branch is None:
        return ""
    if isinstance(branch, ast.While):
        return "while"
    if _reads_state_alone(branch.test):
        return "reads_state"
    return "writes_state" if any(map(_writes_state, _nodes_of(branch))) else ""


def _of_line(source: str) -> ast.If | ast.While | None:
    """The branch whose head is this line."""
    head = source.strip().removeprefix("el")
    try:
        (found,) = ast.parse(f"{head}\n    pass" if head.endswith(":") else head).body
    except (SyntaxError, ValueError):
        return None
    return found if isinstance(found, ast.If | ast.While) else None


def _in_file(finding: Finding) -> ast.If | ast.While | None:
    """The branch whose condition stands on the finding's line, with its body; None where the file has changed."""
    source, line = (finding.source or "").strip(), finding.line or 0
    try:
        text = read_file(Path(finding.file or "")).decode()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None
    lines = text.splitlines()
    if not source or not 0 < line <= len(lines) or lines[line - 1].strip() != source.splitlines()[0].strip():
        return None
    branches = (node for node in ast.walk(tree) if isinstance(node, ast.If | ast.While))
    return next((one for one in branches if one.lineno <= line <= (one.test.end_lineno or 0)), None)


def _nodes_of(branch: ast.If | ast.While) -> Iterator[ast.AST]:
    for statement in (*branch.body, *branch.orelse):
        yield from ast.walk(statement)


def _reads_state_alone(condition: ast.expr) -> bool:
    """Whether it reads attributes of `self` and calls nothing of the user's."""
    names = {node.id for node in ast.walk(condition) if isinstance(node, ast.Name)} - {"bool", "int", "float"}
    calls = [node.func for node in ast.walk(condition) if isinstance(node, ast.Call)]
    called = {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls}
    return names == {"self"} and called <= _READS


def _writes_state(node: ast.AST) -> bool:
    """Whether it assigns to something of `self`, or calls one of its methods that ends in `_`."""
    match node:
        case ast.Assign(targets=targets):
            return any(map(_is_of_self, targets))
        case ast.AugAssign(target=target):
            return _is_of_self(target)
        case ast.Call(func=ast.Attribute(value=value, attr=name)):
            return name.endswith("_") and not name.endswith("__") and _is_of_self(value)
    return False


def _is_of_self(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
        if isinstance(node, ast.Name):
            return node.id == "self"
    return False

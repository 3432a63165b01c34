"""What changed between two releases in the functions of a failing stack, read from the sources of two lanes."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path

from exportdoctor.core.run.bisection import CodeChange
from exportdoctor.core.run.lane_matrix import StackLine
from exportdoctor.lanes.lane import Lane

_MOST_LINES = 80


def code_changes(package: str, places: Sequence[StackLine], failing: Lane, passing: Lane) -> tuple[CodeChange, ...]:
    """For each function of `package` among `places`, innermost first, the diff from the failing to the passing lane."""
    name = import_name(package)
    seen: dict[tuple[str, str], CodeChange] = {}
    for place in reversed(places):
        if place.file.partition("/")[0] != name:
            continue
        file = _source_file(failing, place.file)
        function = _function_at(file, place.line) if file else None
        if function is not None and (place.file, function) not in seen:
            seen[place.file, function] = _compare(place.file, function, failing, passing)
    return tuple(seen.values())


def import_name(package: str) -> str:
    """What a distribution is called in an import, as far as its name says."""
    return package.replace("-", "_")


def _compare(file: str, function: str, failing: Lane, passing: Lane) -> CodeChange:
    before, after = (_code_of(_source_file(lane, file), function) for lane in (failing, passing))
    change = CodeChange(file=file, function=function)
    if before is None:
        return CodeChange(file=file, function=function, note="its source cannot be read")
    if after is None:
        return CodeChange(file=file, function=function, note=f"there is no such function with {passing.spec.title}")
    old, new = (f"{file} ({lane.spec.title})" for lane in (failing, passing))
    lines = list(unified_diff(before, after, old, new, lineterm=""))
    if not lines:
        return change
    left = len(lines) - _MOST_LINES
    note = f"{left} more lines" if left > 0 else ""
    return CodeChange(file=file, function=function, diff="\n".join(lines[:_MOST_LINES]), note=note)


def _source_file(lane: Lane, file: str) -> Path | None:
    """The file in a lane: its own, else that of this environment, which it sees behind its own."""
    folder = lane.packages_folder
    if folder is not None and (folder / file.partition("/")[0]).exists():
        return folder / file if (folder / file).is_file() else None
    spec = importlib.util.find_spec(file.partition("/")[0])
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent.parent / file if "/" in file else Path(spec.origin)
    return found if found.is_file() else None


def _functions(file: Path) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a file by qualified name; of two with one name the later."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if not isinstance(child, ast.ClassDef):
                    found[prefix + child.name] = child
                walk(child, f"{prefix}{child.name}.")
            else:
                walk(child, prefix)

    try:
        walk(ast.parse(file.read_bytes()), "")
    except (OSError, SyntaxError, ValueError):
        return {}
    return found


def _function_at(file: Path, line: int) -> str | None:
    inside = [name for name, node in _functions(file).items() if node.lineno <= line <= (node.end_lineno or 0)]
    return max(inside, key=lambda name: name.count("."), default=None)


def _code_of(file: Path | None, function: str) -> list[str] | None:
    node = _functions(file).get(function) if file is not None else None
    if node is None or file is None:
        return None
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return file.read_text(encoding="utf-8", errors="replace").splitlines()[first - 1 : node.end_lineno]

"""What changed between two releases in the functions of a failing stack, read from the sources of two lanes.

A stack that has none of the package, or none that changed, leaves what the message and the script name of it.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from typing import NamedTuple

import msgspec

from exportdoctor.core.run.bisection import CodeChange
from exportdoctor.core.run.lane_matrix import FailureName, StackLine
from exportdoctor.lanes.lane import Lane

_MOST_LINES = 80
_MOST_NAMES = 4


class _Definition(NamedTuple):
    """The file of a package that defines a name at its top, what else mentions it there, and the definition."""

    file: str
    mentions: list[str]
    code: list[str]


def code_changes(
    package: str, failure: FailureName, failing: Lane, passing: Lane, *, script: str = ""
) -> tuple[CodeChange, ...]:
    """For each function of `package` on the stack, innermost first, the diff from the failing to the passing lane.

    If none differs, then the same of what the message and the script name, with the statements that mention it.
    """
    name = import_name(package)
    found = _of_stack(name, failure.stack, failing, passing)
    if any(change.diff or change.note for change in found):
        return found
    named = list(dict.fromkeys((*_named_in(failure.message, name), *_imported_in(script, name))))
    changes = (change for one in named[:_MOST_NAMES] for change in _of_name(one, failing, passing))
    return (*found, *{(one.file, one.function): one for one in changes}.values())


def _of_stack(name: str, places: Sequence[StackLine], failing: Lane, passing: Lane) -> tuple[CodeChange, ...]:
    seen: dict[tuple[str, str], CodeChange] = {}
    for place in reversed(places):
        if place.file.partition("/")[0].removesuffix(".py") != name:
            continue
        file = _source_file(failing, place.file)
        function = _function_at(file, place.line) if file else None
        if function is not None and (place.file, function) not in seen:
            seen[place.file, function] = _compare(place.file, function, failing, passing)
    return tuple(seen.values())


def import_name(package: str) -> str:
    """What a distribution is called in an import, as far as its name says."""
    return package.replace("-", "_")


def _named_in(text: str, package: str) -> Iterator[str]:
    """The dotted names of the package."""
    yield from re.findall(rf"\b{re.escape(package)}(?:\.[A-Za-z_]\w*)+", text)


def _imported_in(script: str, package: str) -> Iterator[str]:
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(script)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
    yield from _named_in(script, package)


def _of_name(dotted: str, failing: Lane, passing: Lane) -> Iterator[CodeChange]:
    """The statements beside its definition that mention a class or function, and the definition, where they differ."""
    name = dotted.rpartition(".")[2]
    before, after = (_definition(lane, dotted) for lane in (failing, passing))
    if before is not None and after is not None:
        mentions = _diff(before.file, f"what mentions {name}", before.mentions, after.mentions, failing, passing)
        code = _diff(before.file, name, before.code, after.code, failing, passing)
        yield from (msgspec.structs.replace(one, on_stack=False) for one in (mentions, code) if one is not None)
    elif known := before or after:
        lane = failing if before is None else passing
        yield CodeChange(file=known.file, function=name, note=f"{lane.spec.title} defines none", on_stack=False)


def _definition(lane: Lane, dotted: str) -> _Definition | None:
    """That of the module that is named; else the longest, since others are placeholders for what cannot be imported."""
    package, *_, name = dotted.split(".")
    top = _package_place(lane, package)
    if top is None:
        return None
    start = re.compile(rf"^(?:async def|def|class) {re.escape(name)}\b".encode(), re.M)
    every = sorted(top.rglob("*.py")) if top.is_dir() else [top]
    named = dotted.rpartition(".")[0].replace(".", "/") + ".py"
    found = [
        _read_definition(file, str(file.relative_to(top.parent)), name)
        for file in every
        if start.search(file.read_bytes())
    ]
    return max(found, key=lambda one: (one.file == named, len(one.code)), default=None)


def _read_definition(path: Path, file: str, name: str) -> _Definition:
    text = path.read_text(encoding="utf-8", errors="replace")
    found = _Definition(file, [], [])
    with suppress(SyntaxError, ValueError):
        for node in ast.parse(text).body:
            lines = text.splitlines()[_first_line(node) - 1 : node.end_lineno]
            if getattr(node, "name", "") == name:
                found.code.extend(lines)
            elif re.search(rf"\b{re.escape(name)}\b", "\n".join(lines)) and not isinstance(node, ast.ClassDef):
                found.mentions.extend(lines)
    return found


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _diff(
    file: str, function: str, before: list[str], after: list[str], failing: Lane, passing: Lane
) -> CodeChange | None:
    old, new = (f"{file} ({lane.spec.title})" for lane in (failing, passing))
    lines = list(unified_diff(before, after, old, new, lineterm=""))
    left = len(lines) - _MOST_LINES
    note = f"{left} more lines" if left > 0 else ""
    return CodeChange(file=file, function=function, diff="\n".join(lines[:_MOST_LINES]), note=note) if lines else None


def _compare(file: str, function: str, failing: Lane, passing: Lane) -> CodeChange:
    before, after = (_code_of(_source_file(lane, file), function) for lane in (failing, passing))
    if before is None:
        return CodeChange(file=file, function=function, note="its source cannot be read")
    if after is None:
        return CodeChange(file=file, function=function, note=f"there is no such function with {passing.spec.title}")
    return _diff(file, function, before, after, failing, passing) or CodeChange(file=file, function=function)


def _source_file(lane: Lane, file: str) -> Path | None:
    """The file in a lane."""
    top = _package_place(lane, file.partition("/")[0].removesuffix(".py"))
    found = top.parent / file if top is not None else None
    return found if found is not None and found.is_file() else None


def _package_place(lane: Lane, package: str) -> Path | None:
    """A package's folder or file in a lane: its own, else that of this environment, which it sees behind its own."""
    if (folder := lane.packages_folder) is not None:
        for place in (folder / package, folder / f"{package}.py"):
            if place.exists():
                return place
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)


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
    return file.read_text(encoding="utf-8", errors="replace").splitlines()[_first_line(node) - 1 : node.end_lineno]

"""Statements in the middle of a function become a function of their own, so that they are a call that can be hoisted.

What is looked for is a loop over values of tensors, with what it needs before it and what is made of its lists after
it: from tensors and plain values to tensors and numbers.
"""

from __future__ import annotations

import ast
import copy
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from exportdoctor.shims.rules.code.code_swap import (
    class_around,
    compile_alone,
    compile_for,
    definition_of,
    has_private_names,
    swap_code,
)
from exportdoctor.shims.rules.code.made_code import load
from exportdoctor.shims.rules.code.name_flow import READS_ALL_NAMES, all_names, bound_names, is_read_first
from exportdoctor.shims.rules.hoisting.block_effects import has_node, is_movable, names_changed
from exportdoctor.shims.rules.hoisting.clean_calls import NOT_ONE_CALL
from exportdoctor.shims.rules.hoisting.hoisted_results import Outline, global_names
from exportdoctor.shims.rules.hoisting.local_kinds import CLEAN, OTHER, Kinds

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PART = "_part_"
"""Begins the names of values that were taken out of statements."""
_LOOPS = (ast.For, ast.While, ast.comprehension)


@contextmanager
def call_blocks(outlines: Sequence[Outline]) -> Iterator[None]:
    """Within it the statements are calls."""
    with swap_code({one.owner: one.code for one in outlines}, global_names(outlines)):
        yield


def outline_blocks(owner: FunctionType, lines: set[int], seen: Mapping[int, Kinds]) -> Outline | None:
    """The function with calls of new functions in place of the statements around these lines, where values of clean
    tensors are read. `seen`: what its names held at its lines.

    `None` where none of them is a loop which gives clean tensors and numbers alone.
    """
    node = definition_of(owner)
    if node is None or owner.__code__.co_flags & NOT_ONE_CALL or not has_node(node, _LOOPS):
        return None
    if class_around(owner.__code__) and has_private_names(node):  # outside of the class they are others
        return None
    if has_node(node, ast.Nonlocal) or READS_ALL_NAMES & set(all_names(node)):
        return None
    kept, blocks = _find_blocks(node, lines, seen)
    if kept != lines:  # statements that stay where they are stay as they are
        node = definition_of(owner)
        assert node is not None
        _, blocks = _find_blocks(node, kept, seen)
    if not any(has_node(one, _LOOPS) for block in blocks for one in block.statements):
        return None
    stem = re.sub(r"\W+", "_", owner.__qualname__).strip("_")
    found = []
    for number, block in reversed(list(enumerate(blocks))):  # from the last on, so that the places stay
        made = _cut_out(owner, block, f"{stem}_block" + (f"_{number}" if number else ""))
        found += [made] if made is not None else []
    whole = compile_for(owner, node) if found and not _sees_inside(node, blocks) else None
    return Outline(owner=owner, code=whole, blocks=tuple(found)) if whole is not None else None


def _find_blocks(
    function: ast.FunctionDef, lines: set[int], seen: Mapping[int, Kinds]
) -> tuple[set[int], list[_Block]]:
    """The lines that are in blocks, and these, in order. Calls in them may become statements of their own."""
    kept, blocks = set[int](), list[_Block]()
    for line in sorted(lines):
        place = _find_statement(function, line)
        places = [_Place(place.lists[depth:]) for depth in range(len(place.lists))] if place is not None else []
        block = next((found for one in places if (found := _grow(one, seen)) is not None), None)
        if block is not None:
            kept.add(line)
            if not any(one in other.statements for other in blocks for one in block.statements):
                blocks.append(block)
    return kept, blocks


def _sees_inside(node: ast.FunctionDef, blocks: Sequence[_Block]) -> bool:
    """Whether a function inside the rest of that one may see what a block binds or sees."""
    names = {name for block in blocks for name in (*block.given, *block.bound)}
    inside = (one for one in ast.walk(node) if isinstance(one, ast.FunctionDef | ast.Lambda) and one is not node)
    return any(name in names for one in inside for name in all_names(one))


# --- which statements


@dataclass(frozen=True)
class _Place:
    """A statement in the lists of statements around it, the innermost first; no list is of a loop."""

    lists: tuple[tuple[list[ast.stmt], int], ...]

    @property
    def statement(self) -> ast.stmt:
        block, index = self.lists[0]
        return block[index]


@dataclass(frozen=True)
class _Block:
    """Statements of a list, the names that they read, bind, and give to what follows."""

    within: list[ast.stmt]
    statements: tuple[ast.stmt, ...]
    given: tuple[str, ...]
    bound: frozenset[str]
    results: tuple[str, ...]


def _find_statement(function: ast.FunctionDef, line: int) -> _Place | None:
    """The innermost statement at that line that is in no loop."""
    lists: list[tuple[list[ast.stmt], int]] = []
    block = function.body
    while True:
        index = next((at for at, one in enumerate(block) if one.lineno <= line <= (one.end_lineno or one.lineno)), None)
        if index is None:
            return _Place(tuple(lists)) if lists else None
        lists.insert(0, (block, index))
        one = block[index]
        inner = [one.body, one.orelse] if isinstance(one, ast.If) else [one.body] if isinstance(one, ast.With) else []
        found = [part for part in inner if part and part[0].lineno <= line <= (part[-1].end_lineno or 0)]
        if not found:
            return _Place(tuple(lists))
        block = found[0]


def _grow(place: _Place, seen: Mapping[int, Kinds]) -> _Block | None:
    """The fewest statements around that one which read tensors and settings, and give clean tensors and numbers."""
    (within, at), *around = place.lists
    _take_out(within, at, lambda one: isinstance(one, _COMPREHENSIONS))
    start, end = at, at + 1
    after = [one for block, index in around for one in block[index + 1 :]]
    while True:
        statements, rest = within[start:end], (*within[end:], *after)
        before, then = _kinds_at(statements[0], seen), _kinds_at(rest[0], seen) if rest else None
        bound = {name for one in statements for name in bound_names(one)}
        if before is None or then is None:
            return None
        given = tuple(sorted(name for name in before if is_read_first(name, statements)))
        results = tuple(sorted(name for name in bound if is_read_first(name, rest)))
        unfinished = {name for name in results if not name.startswith(_PART) and then.get(name) != CLEAN}
        # what the names hold is known by line: of two statements on one line, before the first
        earlier = {name for one in within[:start] for name in bound_names(one)} - before.keys()
        unknown = any(is_read_first(name, statements) for name in earlier)
        if unknown or any(before[name] == OTHER for name in given) or not names_changed(statements).isdisjoint(given):
            start -= 1
            if start < 0:
                return None
        elif unfinished or not results:
            _take_out(within, end, functools.partial(_is_one_of, unfinished))
            end += 1
            if end > len(within):
                return None
        else:
            made = _Block(within, tuple(statements), given, frozenset(bound), results)
            return made if is_movable(statements, functools.partial(_is_plain, seen)) else None


def _is_plain(seen: Mapping[int, Kinds], name: str, line: int) -> bool:
    """Whether it held a clean tensor or a number whenever the code came to that line."""
    return seen.get(line, {}).get(name) == CLEAN


def _is_one_of(names: set[str], node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _take_out(within: list[ast.stmt], index: int, is_wanted: Callable[[ast.expr], bool]) -> None:
    """The innermost call with something wanted in it becomes a statement of its own before that one, which stays where
    it has none."""
    value = getattr(within[index], "value", None) if index < len(within) else None
    found = _call_with(value, is_wanted) if isinstance(value, ast.expr) and value is not None else None
    if found is None or (isinstance(within[index], ast.Assign) and found is value):
        return
    name = f"{_PART}{len([one for each in within for one in bound_names(each) if one.startswith(_PART)])}"
    made = ast.Assign([ast.Name(name, ast.Store())], found)
    within[index] = _Replacing(found, load(name)).visit(within[index])
    within.insert(index, ast.fix_missing_locations(ast.copy_location(made, within[index])))


def _call_with(node: ast.AST, is_wanted: Callable[[ast.expr], bool]) -> ast.Call | None:
    """The innermost call with something wanted in it, of what always runs."""
    if isinstance(node, (*_COMPREHENSIONS, ast.IfExp, ast.BoolOp, ast.Lambda)):
        return None
    parts = [one for one in ast.walk(node) if isinstance(one, ast.expr) and is_wanted(one)]
    if not parts:
        return None
    inner = next((found for one in ast.iter_child_nodes(node) if (found := _call_with(one, is_wanted))), None)
    return inner or (node if isinstance(node, ast.Call) else None)


class _Replacing(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return ast.copy_location(self.new, node) if node is self.old else super().visit(node)


def _kinds_at(statement: ast.stmt, seen: Mapping[int, Kinds]) -> Kinds | None:
    """What the names held before that statement; `None` where it was not reached."""
    lines = (line for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1) if line in seen)
    first = next(lines, None)
    return None if first is None else seen[first]


# --- the new functions


def _cut_out(owner: FunctionType, block: _Block, name: str) -> FunctionType | None:
    """The block as a function of that name, called in its place. `None` where it reads what the owner closes over."""
    statements, names = block.statements, {name for one in block.statements for name in all_names(one)}
    if names & {*owner.__code__.co_freevars} or name in owner.__globals__:
        return None
    results: ast.expr = ast.Tuple([load(one) for one in block.results], ast.Load())
    arguments = ast.arguments([], [ast.arg(one) for one in block.given], None, [], [], None, [])
    node = ast.FunctionDef(name, arguments, [*copy.deepcopy(statements), ast.Return(results)], [], None, None)
    node = ast.fix_missing_locations(ast.copy_location(node, statements[0]))
    made = compile_alone(owner, node)
    targets = ast.Tuple([ast.Name(one, ast.Store()) for one in block.results], ast.Store())
    called = ast.Assign([targets], ast.Call(load(name), [load(one) for one in block.given], []))
    start = next(place for place, one in enumerate(block.within) if one is statements[0])
    block.within[start : start + len(statements)] = [
        ast.fix_missing_locations(ast.copy_location(called, statements[0]))
    ]
    return made

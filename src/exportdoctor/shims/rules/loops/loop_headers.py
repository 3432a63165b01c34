"""What a loop goes over: whole numbers, or the rows of a tensor."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from exportdoctor.shims.rules.code.made_code import call_of, load
from exportdoctor.shims.rules.code.name_flow import SCAN_PREFIX

SOURCE, COUNT = f"{SCAN_PREFIX}rows_first", f"{SCAN_PREFIX}count_of"
"""What rewritten code calls: a tensor with its rows first, and how many such tensors have each."""
_VIEWS = frozenset({"contiguous", "flip", "movedim", "permute", "swapaxes", "swapdims", "transpose"})
"""Methods that give the same values in another order."""


@dataclass(frozen=True)
class LoopHeader:
    """What a loop goes over: its index from `start` up to `stop`, or `backwards`. Over the rows of a tensor, `before`
    takes the tensor, the body begins with reading the row, and `over` is what the loop goes over then."""

    index: str
    start: ast.expr
    stop: ast.expr
    body: list[ast.stmt]
    before: list[ast.stmt]
    expressions: list[ast.expr]
    backwards: bool = False
    over: ast.expr | None = None


def header_of(loop: ast.For, number: int) -> LoopHeader | None:
    """The header of `for index in range(...)`, also backwards, of `for row in tensor`, `for row in tensor.unbind(dim)`,
    of pieces of one row, of several of these in a `zip`, and of all of them enumerated; None for any other."""
    if loop.orelse:
        return None
    zero, one = ast.Constant(0), ast.Constant(1)
    start: ast.expr
    stop: ast.expr
    match loop:
        case ast.For(target=ast.Name(id=index), iter=ast.Call(func=ast.Name(id="reversed"), args=[over], keywords=[])):
            inner = header_of(ast.For(loop.target, over, loop.body, []), number)
            return replace(inner, backwards=True) if inner is not None and not inner.before else None
        case ast.For(
            target=ast.Name(id=index),
            iter=ast.Call(
                func=ast.Name(id="range"),
                args=[last, end, ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))],
                keywords=[],
            ),
        ):
            start, stop = (ast.BinOp(side, ast.Add(), one) for side in (end, last))
            return LoopHeader(index, start, stop, loop.body, [], [start, stop], backwards=True)
        case ast.For(target=ast.Name(id=index), iter=ast.Call(func=ast.Name(id="range"), args=limits, keywords=[])):
            if not 0 < len(limits) < 3:
                return None
            start, stop = (zero, limits[0]) if len(limits) == 1 else limits
            return LoopHeader(index, start, stop, loop.body, [], [start, stop])
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(id=index), target]),
            iter=ast.Call(func=ast.Name(id="enumerate"), args=[over], keywords=[]),
        ):
            return _over_rows(loop, index, target, over, number)
    return _over_rows(loop, f"{SCAN_PREFIX}at_{number}", loop.target, loop.iter, number)


def _over_rows(loop: ast.For, index: str, target: ast.expr, over: ast.expr, number: int) -> LoopHeader | None:
    """The header of a loop over the rows of one tensor, or of several side by side."""
    names, sources = [target], [over]
    match target, over:
        case ast.Tuple(elts=names), ast.Call(func=ast.Name(id="zip"), args=sources, keywords=strict):
            if not all(one.arg == "strict" and isinstance(one.value, ast.Constant) for one in strict):
                return None
    every = [_rows_of(one) for one in sources]
    rows = [one for one in every if one is not None]
    if not rows or not len(names) == len(rows) == len(every):
        return None
    reads, taken = list[ast.stmt](), list[ast.stmt]()
    tensors, old = list[ast.expr](), dict[int, ast.expr]()
    for place, (name, row) in enumerate(zip(names, rows, strict=True)):
        if not isinstance(name, ast.Name):
            return None
        source, given = f"{SCAN_PREFIX}tensor_{number}_{place}", load(f"{SCAN_PREFIX}over_{number}_{place}")
        read: ast.expr = ast.Subscript(load(source), load(index), ast.Load())
        if row.are_pieces:
            read = ast.Call(ast.Attribute(read, "unsqueeze", ast.Load()), [row.place], [])
        reads.append(ast.Assign([ast.Name(name.id, ast.Store())], read))
        taken += [  # it is computed once, also for a loop that stays one
            ast.Assign([ast.Name(given.id, ast.Store())], row.tensor),
            ast.Assign([ast.Name(source, ast.Store())], call_of(SOURCE, given, row.place)),
        ]
        tensors.append(load(source))
        old[id(row.tensor)] = given
    as_is = {id(row.tensor): row.tensor for row in rows}
    return LoopHeader(
        index,
        ast.Constant(0),
        call_of(COUNT, *tensors),
        [*(ast.fix_missing_locations(ast.copy_location(one, loop)) for one in reads), *loop.body],
        taken,
        [part for row in rows for part in (row.tensor, row.place)],
        over=_Replaced(old).visit(copy.deepcopy(loop.iter, as_is)),
    )


class _Replaced(ast.NodeTransformer):
    """Nodes by others, by their identity."""

    def __init__(self, new: Mapping[int, ast.expr]) -> None:
        self.new = new

    def visit(self, node: ast.AST) -> Any:
        return self.new.get(id(node)) or self.generic_visit(node)


@dataclass(frozen=True)
class _Rows:
    """The rows of a tensor along a dimension, or pieces of one row, which have that dimension."""

    tensor: ast.expr
    place: ast.expr
    are_pieces: bool = False


def _rows_of(over: ast.expr) -> _Rows | None:
    tensor: ast.expr
    rest: list[ast.expr]
    match over:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), args=[tensor, *rest]):
            pass
        case ast.Call(func=ast.Attribute(value=tensor, attr=name), args=rest):
            if name in _VIEWS:
                return _Rows(over, ast.Constant(0))
        case ast.Name() | ast.Subscript():
            return _Rows(over, ast.Constant(0))
        case _:
            return None
    pieces: list[ast.expr] = []
    if name in ("split", "chunk"):
        pieces, rest = rest[:1], rest[1:]
    elif name != "unbind":
        return None
    place = _only(rest, over.keywords)
    if place is None or (name != "unbind" and not (pieces and _is_number(place))):
        return None
    of_one_row = not pieces or ast.unparse(pieces[0]) in (
        ("1",) if name == "split" else (f"{ast.unparse(tensor)}.{size}" for size in _sizes(ast.unparse(place)))
    )
    return _Rows(tensor, place, bool(pieces)) if of_one_row else None


def _sizes(place: str) -> tuple[str, ...]:
    return f"shape[{place}]", f"size({place})", f"size()[{place}]"


def _is_number(node: ast.expr) -> bool:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_number(inner)
        case ast.Constant(value=int() as value):
            return not isinstance(value, bool)
    return False


def _only(rest: list[ast.expr], keywords: list[ast.keyword]) -> ast.expr | None:
    """The dimension in the arguments of `unbind`, 0 by default; None where there are others."""
    given = [*rest, *(one.value for one in keywords if one.arg == "dim")]
    if len(given) > 1 or len(given) < len(rest) + len(keywords):
        return None
    return given[0] if given else ast.Constant(0)

"""Conditions that ask whether a slice is empty: `if count == 0: continue`, where there is `x[start : start + count]`.

What they compare is a number, of which torch knows no more than that it is one. That it is the length of a slice, or
where one begins and ends, is seen from the code.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass

Bounds = tuple[str, str]
"""Where a slice begins and ends, as code; it begins at "0" where the code names nothing."""

_OF_NUMBER = {
    (ast.Eq, 0): True,
    (ast.NotEq, 0): False,
    (ast.LtE, 0): True,
    (ast.Lt, 1): True,
    (ast.Gt, 0): False,
    (ast.GtE, 1): False,
}
"""What `count OP number` is where the slice is empty."""
_OF_BOUNDS = {ast.Eq: True, ast.NotEq: False, ast.GtE: True, ast.Lt: False}
"""What `start OP end` is where the slice is empty."""
_SWAPPED = {ast.Eq: ast.Eq, ast.NotEq: ast.NotEq, ast.LtE: ast.GtE, ast.Lt: ast.Gt, ast.GtE: ast.LtE, ast.Gt: ast.Lt}
"""`a OP b` as `b OP a`."""


@dataclass(frozen=True)
class EmptySlice:
    """What a condition gives where a slice is empty. An order compares `low` with `high`: where `high` is less, it
    gives that, too, though the slice may have something."""

    answer: bool
    low: ast.expr | None = None
    high: ast.expr | None = None


class SliceConditions:
    """Those of one function, by what its slices take."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self._meanings = _assigned_once(function)
        slices = [one for one in ast.walk(function) if isinstance(one, ast.Slice) and one.step is None and one.upper]
        self._bounds: set[Bounds] = {
            (self._meaning_of(one.lower) if one.lower is not None else "0", self._meaning_of(one.upper))
            for one in slices
            if one.upper is not None
        }
        self._lengths = {
            length
            for start, end in self._bounds
            for length in (
                *((end,) if start == "0" else ()),
                *(name for name in self._names_in(function) if {f"{start} + {name}", f"{name} + {start}"} & {end}),
                f"{end} - {start}",
            )
        }

    def of_nothing(self, condition: ast.expr) -> EmptySlice | None:
        """What the condition gives where a slice is empty; None where it does not ask that."""
        match condition:
            case ast.Name():
                return EmptySlice(False) if self._is_length(condition) else None
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _SWAPPED:
                kind = type(operator)
                return self._of_comparison(left, kind, right) or self._of_comparison(right, _SWAPPED[kind], left)
        return None

    def _of_comparison(self, left: ast.expr, kind: type[ast.cmpop], right: ast.expr) -> EmptySlice | None:
        low, high = left, right
        if isinstance(right, ast.Constant):
            answer = _OF_NUMBER.get((kind, right.value)) if type(right.value) is int else None
            is_asked, low, high = self._is_length(left), ast.Constant(0), left
        else:
            answer = _OF_BOUNDS.get(kind)
            is_asked = (self._meaning_of(left), self._meaning_of(right)) in self._bounds
        if answer is None or not is_asked:
            return None
        if kind in (ast.Eq, ast.NotEq):
            return EmptySlice(answer)
        is_plain = all(isinstance(one, ast.Name | ast.Constant) for one in (low, high))  # to be read once more
        return EmptySlice(answer, low, high) if is_plain else None

    def _is_length(self, value: ast.expr) -> bool:
        return self._meaning_of(value) in self._lengths

    def _meaning_of(self, value: ast.expr) -> str:
        """Its code; of a name that is assigned once, the sum or difference that it is."""
        code = ast.unparse(value)
        return self._meanings.get(code, code)

    def _names_in(self, function: ast.FunctionDef) -> set[str]:
        return {one.id for one in ast.walk(function) if isinstance(one, ast.Name)}


def _assigned_once(function: ast.FunctionDef) -> dict[str, str]:
    """The code of each sum or difference of two values that a name stands for in the whole function."""
    stored = Counter(
        one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    )
    found: dict[str, str] = {}
    for statement in ast.walk(function):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(op=ast.Add() | ast.Sub()) as value):
                if stored[name] == 1:
                    found[name] = ast.unparse(value)
    return found

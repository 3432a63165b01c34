"""Guards on one size, as a constraint violation prints them, evaluated at sizes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

_LINE = re.compile(
    r"Not all values of (?P<name>\S+) = (?P<place>\S+) in the specified range[^\n]* satisfy the generated guard "
    r"(?P<guard>[^\n]+)\.$",
    re.MULTILINE,
)
_NODES = (
    ast.Expression, ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Constant, ast.Name, ast.Load, ast.operator,
    ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip
_MOST = 256
"""How many sizes in a row a guard must take to count as one that takes all from there on; a multiple of every small
period."""

SizeGuard = Callable[[int], bool]


def guards_of_sizes(message: str) -> dict[str, list[SizeGuard]]:
    """The guards by the declared dimension that is violated; none for one with a guard that is not of it alone."""
    found: dict[str, list[SizeGuard]] = {}
    unreadable = set()
    for line in _LINE.finditer(message):
        guard = _guard_of(line["guard"].replace(line["place"], "size"))
        if guard is None:
            unreadable.add(line["name"])
        else:
            found.setdefault(line["name"], []).append(guard)
    return {name: guards for name, guards in found.items() if name not in unreadable}


def least_size(guards: list[SizeGuard], size_at: Callable[[int], int], *, start: int) -> int | None:
    """The least number from `start` on from which all guards take `size_at` of every number; None where there is none
    below some hundred."""
    refused = [number for number in range(start, start + 2 * _MOST) if not _take(guards, size_at(number))]
    least = max(refused, default=start - 1) + 1
    return least if least < start + _MOST else None


def _take(guards: list[SizeGuard], size: int) -> bool:
    try:
        return all(guard(size) for guard in guards)
    except ArithmeticError:
        return False


def _guard_of(text: str) -> SizeGuard | None:
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if not isinstance(node, _NODES) or (isinstance(node, ast.Name) and node.id != "size"):
            return None
        if isinstance(node, ast.Pow | ast.LShift | ast.RShift) or (
            isinstance(node, ast.Constant) and not isinstance(node.value, int)
        ):
            return None
    code = compile(tree, "<guard>", "eval")
    none: Mapping[str, object] = {}
    return lambda size: bool(eval(code, {"__builtins__": none, "size": size}))

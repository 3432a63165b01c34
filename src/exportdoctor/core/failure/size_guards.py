"""Guards on one size, as a constraint violation prints them, evaluated at sizes, and suggestions within them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import partial

_LINE = re.compile(
    r"Not all values of (?P<name>\S+) = (?P<place>\S+) in the specified range(?P<range>[^\n]*) satisfy the "
    r"generated guard (?P<guard>[^\n]+)\.$",
    re.MULTILINE,
)
_NODES = (
    ast.Expression, ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Constant, ast.Name, ast.Load, ast.operator,
    ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip
_MULTIPLE_LESS = re.compile(r"\w+ = (?:(\d+)\*)?(\w+) - (\d+)")
_MULTIPLE = re.compile(r"(\w+) = (?:(\d+)\*)?(\w+)( [+-] \d+)?")
_LEAST, _LARGEST = re.compile(r"\bmin=(\d+)"), re.compile(r"\bmax=(\d+)")
_FROM, _UNTIL = re.compile(r"(\d+) <= "), re.compile(r" <= (\d+)")
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


def declared_ranges(message: str) -> dict[str, tuple[int, int | None]]:
    """The least and the largest size that each violated dimension is declared with; 2 and None where none is."""
    found: dict[str, tuple[int, int | None]] = {}
    for line in _LINE.finditer(message):
        first, last = _FROM.search(line["range"]), _UNTIL.search(line["range"])
        found[line["name"]] = max(int(first[1]), 2) if first else 2, int(last[1]) if last else None
    return found


def unproved_sizes(message: str) -> frozenset[str]:
    """The dimensions with a guard that takes each size of their range, as far as it was evaluated: torch lists it
    because it cannot prove that, as of `1 % (32*(size // 4)) != 0`."""
    ranges = declared_ranges(message)
    found = set()
    for name, guards in guards_of_sizes(message).items():
        first, last = ranges[name]
        if any(least_size([guard], int, start=first, end=last) == first for guard in guards):
            found.add(name)
    return frozenset(found)


def least_size(
    guards: list[SizeGuard], size_at: Callable[[int], int], *, start: int, end: int | None = None
) -> int | None:
    """The least number from `start` on from which all guards take `size_at` of every number, to `end` if there is one;
    None where there is none below some hundred."""
    last = start + 2 * _MOST if end is None else min(end + 1, start + 2 * _MOST)
    refused = [number for number in range(start, last) if not _take(guards, size_at(number))]
    least = max(refused, default=start - 1) + 1
    return least if least < (start + _MOST if last == start + 2 * _MOST else last) else None


def raise_least_sizes(fixes: list[str], message: str) -> list[str]:
    """Lines that torch suggests, with the least size from which on the guards of the same message take all.

    torch suggests `min=5` beside a guard that refuses 5, `_h` from 1 on for `h = 4*_h` beside one that refuses 4, and
    no least size for a root of which another dimension is a multiple less a number, which could be negative. A root
    that is no size of an input itself (`_h`) is a new symbol, which torch takes to be 2 or more.
    """
    guards, ends = guards_of_sizes(message), {line.partition(" = ")[0]: _ends_of(line) for line in fixes}
    least: dict[str, int] = {}
    for line in fixes:
        if match := _MULTIPLE_LESS.fullmatch(line):
            factor, root, less = match.groups()
            least[root] = max(least.get(root, 0), -(-int(less) // int(factor or 1)))
    for line in fixes:
        match = _MULTIPLE.fullmatch(line)
        name = line.partition(" = ")[0]
        root = match[3] if match else name
        if match and root.startswith("_"):
            least[root] = max(least.get(root, 0), 2)
        if name not in guards or root not in ends or (not match and "Dim(" not in line):
            continue
        size_at = partial(_multiple, int(match[2] or 1), _number(match[4])) if match else int
        first, last = ends[root]
        found = least_size(guards[name], size_at, start=max(first, least.get(root, 0)), end=last)
        if found is not None and found > first:
            least[root] = max(least.get(root, 0), found)
    return [_from(line, least.get(line.partition(" = ")[0], 0)) for line in fixes]


def _ends_of(line: str) -> tuple[int, int | None]:
    """The least and the largest size that a line declares; a dimension without one has at least 1."""
    first, last = _LEAST.search(line), _LARGEST.search(line)
    return int(first[1]) if first else 1, int(last[1]) if last else None


def _multiple(factor: int, more: int, root: int) -> int:
    return factor * root + more


def _number(text: str | None) -> int:
    return int(text.replace(" ", "")) if text else 0


def _from(line: str, least: int) -> str:
    """A suggested line with this least size, if it has a lower one or none."""
    name = line.partition(" = ")[0]
    if not least or "Dim(" not in line or _ends_of(line)[0] >= max(least, 2):
        return line
    if _LEAST.search(line):
        return _LEAST.sub(f"min={least}", line)
    return line.replace(f"Dim('{name}'", f"Dim('{name}', min={least}")


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

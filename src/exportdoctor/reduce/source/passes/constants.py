"""Passes that make literals smaller: texts, floats and integers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from math import isfinite, isqrt

from exportdoctor.reduce.search_protocol import Search, lift
from exportdoctor.reduce.source.source_version import SourceVersion
from exportdoctor.reduce.source.sweep import one_sweep
from exportdoctor.reduce.source.tree import Edit, is_export, replace_node


@one_sweep
def simplify_literals(tree: ast.Module) -> Iterator[Edit]:
    """Replace a text by an empty one, and a float by 0.0, 1.0 or fewer digits.

    `torch.full((n,), torch.finfo(x.dtype).min)` has become `torch.full((n,), -3.4028234663852886e+38)`: a
    reader must not wonder whether that number matters. The file that an export writes stays: where a version has no
    such failure, the script must pass.
    """
    files = {file for call in ast.walk(tree) if is_export(call) for file in call.args}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str()) if node in files:
                continue
            case ast.Constant(value=float(value)):
                fewer_digits = (round(value),) if isfinite(value) else ()
                yield from (replace_node(node, ast.Constant(simpler)) for simpler in (0.0, 1.0, *fewer_digits))
            case ast.Constant(value=str() | bytes() as text):
                yield replace_node(node, ast.Constant(type(text)()))
            case ast.JoinedStr():
                yield replace_node(node, ast.Constant(""))


_SIZED = frozenset({"ones", "zeros", "empty", "rand", "randn", "full", "Linear", "Embedding", "LayerNorm"})
"""Calls whose whole numbers are sizes: an empty tensor fails, or passes, for reasons of its own."""


def shrink_integers(text: str, allowed: frozenset[str]) -> Search[str, str]:
    """Shrink each integer in turn, by its divisors and then by binary descent.

    `torch.zeros(1176, 1280)`, captured from a full-size image, in a repro that fails as well with `(4, 8)`:
    it runs at once, and a reader need not wonder where 1176 came from.
    """
    version = SourceVersion.of(text)
    place = 0
    while version and place < len(integers := tuple(_integers(version.tree))):
        _, value = integers[place]
        embed = partial(_with_integer, version, allowed, place)
        found = (yield from lift(shrink_int(value), embed)) if value > 1 else value
        if found < value:
            version = _version_with(version, place, found)
            text = version.text if version else text
        place += 1
    return text


def shrink_int(value: int, *, lower: int = 0) -> Search[int, int]:
    """The smallest interesting integer from `lower` to `value`, if being interesting is monotone.

    In any case one whose predecessor is not interesting. The bound first, then the divisors of `value`, then
    binary descent from the smallest of these that holds. The divisors are there because sizes in a model
    divide each other: a width of 1280 with 16 heads can go to 80 or 16, and every step of a plain descent
    (640, 960, 1120, ...) may be no multiple of 16.
    """
    if value <= lower:
        return value
    tried = (lower, *(divisor for divisor in _divisors(value) if divisor > lower))
    index = yield tried
    if index == 0:
        return lower
    high, below = (value, tried[-1]) if index is None else (tried[index], tried[index - 1])
    while high - below > 1:
        middle = (below + high) // 2
        if (yield (middle,)) is None:
            below = middle
        else:
            high = middle
    return high


def _divisors(value: int) -> Iterator[int]:
    """The proper divisors above 1, ascending; of large numbers only those up to 1000, and their cofactors."""
    small = [divisor for divisor in range(2, min(isqrt(value), 1000) + 1) if value % divisor == 0]
    large = [value // divisor for divisor in reversed(small) if divisor * divisor != value]
    yield from small
    yield from large


def _integers(tree: ast.Module) -> Iterator[tuple[ast.Constant, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
            yield node, node.value


def _with_integer(version: SourceVersion, allowed: frozenset[str], place: int, value: int) -> str | None:
    """The text with another value for its integer number `place`; None where that may not be proposed."""
    changed = _version_with(version, place, value)
    return changed.text if changed and changed.cost < version.cost and changed.undefined <= allowed else None


def _version_with(version: SourceVersion, place: int, value: int) -> SourceVersion | None:
    node, _ = tuple(_integers(version.tree))[place]
    if value == 0 and node in _sizes(version.tree):
        return None
    return version.apply(replace_node(node, ast.Constant(value)))


def _sizes(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args) if name in _SIZED:
                yield from args

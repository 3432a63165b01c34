"""The pass that makes literals smaller."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from math import isfinite

from exportdoctor.reduce.search import Search, lifted
from exportdoctor.reduce.shrink import shrink_int
from exportdoctor.reduce.source.draft import Draft
from exportdoctor.reduce.source.sweep import Rules, one_sweep
from exportdoctor.reduce.source.tree import Edit, replaced


@one_sweep
def simplify_literals(tree: ast.Module) -> Iterator[Edit]:
    """Replace a text by an empty one, and a float by 0.0, 1.0 or fewer digits.

    `torch.full((n,), torch.finfo(x.dtype).min)` has become `torch.full((n,), -3.4028234663852886e+38)`: a
    reader must not wonder whether that number matters.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=float(value)):
                fewer_digits = (round(value),) if isfinite(value) else ()
                yield from (replaced(node, ast.Constant(simpler)) for simpler in (0.0, 1.0, *fewer_digits))
            case ast.Constant(value=str() | bytes() as text):
                yield replaced(node, ast.Constant(type(text)()))
            case ast.JoinedStr():
                yield replaced(node, ast.Constant(""))


_SIZED = frozenset({"ones", "zeros", "empty", "rand", "randn", "full", "Linear", "Embedding", "LayerNorm"})
"""Calls whose whole numbers are sizes: an empty tensor fails, or passes, for reasons of its own."""


def shrink_integers(text: str, rules: Rules) -> Search[str, str]:
    """Shrink each integer in turn, by its divisors and then by binary descent.

    `torch.zeros(1176, 1280)`, captured from a full-size image, in a repro that fails as well with `(4, 8)`:
    it runs at once, and nobody has to ask where 1176 came from.
    """
    draft = Draft.of(text)
    place = 0
    while draft and place < len(integers := tuple(_integers(draft.tree))):
        _, value = integers[place]
        lift = partial(_with_integer, draft, rules, place)
        found = (yield from lifted(shrink_int(value), lift)) if value > 1 else value
        if found < value:
            draft = _draft_with(draft, place, found)
            text = draft.text if draft else text
        place += 1
    return text


def _integers(tree: ast.Module) -> Iterator[tuple[ast.Constant, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
            yield node, node.value


def _with_integer(draft: Draft, rules: Rules, place: int, value: int) -> str | None:
    """The text with another value for its integer number `place`; None where that may not be proposed."""
    changed = _draft_with(draft, place, value)
    return changed.text if changed and changed.cost < draft.cost and rules.allow(changed) else None


def _draft_with(draft: Draft, place: int, value: int) -> Draft | None:
    node, _ = tuple(_integers(draft.tree))[place]
    if value == 0 and node in _sizes(draft.tree):
        return None
    return draft.edited(replaced(node, ast.Constant(value)))


def _sizes(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args) if name in _SIZED:
                yield from args

"""The smallest sets that do something, and their alternatives: which shims together let a part export.

The only place that looks for more than one minimal set. Each set found is 1-minimal; that none contains
another holds where adding items never spoils what a set does.
"""

from __future__ import annotations

from typing import TypeVar

from exportdoctor.reduce.ddmin import ddmin
from exportdoctor.reduce.search import Search

T = TypeVar("T")


def minimise_set(items: tuple[T, ...]) -> Search[tuple[T, ...], tuple[T, ...]]:
    """One minimal set: `ddmin`, which gives up the last items first. Put the soundest first."""
    return ddmin(items)


def minimal_sets(items: tuple[T, ...], *, limit: int = 8) -> Search[tuple[T, ...], tuple[tuple[T, ...], ...]]:
    """Up to `limit` minimal sets, the preferred one first.

    A further set must do without at least one item of each known one, so each round leaves out one
    combination of such items, and minimises what is left if that is still interesting. Two shims that cure
    the same failure are why: the report offers both, and `ddmin` alone would only ever show the one that
    comes first.
    """
    found: list[tuple[T, ...]] = [(yield from minimise_set(items))]
    untried: list[frozenset[T]] = [frozenset((item,)) for item in found[0]]
    seen = set(untried)
    while untried and len(found) < limit:
        left_out = untried.pop(0)
        rest = tuple(item for item in items if item not in left_out)
        if (yield (rest,)) is None:
            continue
        smallest = yield from minimise_set(rest)
        if smallest not in found:
            found.append(smallest)
        wider = [left_out | {item} for item in smallest]
        untried += [items for items in wider if items not in seen]
        seen.update(wider)
    return tuple(found)

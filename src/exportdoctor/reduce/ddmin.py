"""Delta debugging: the smallest part of a set that still matters.

What remains is a subset in its old order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from exportdoctor.reduce.search_protocol import Search, until_no_progress

T = TypeVar("T")


def ddmin(items: tuple[T, ...]) -> Search[tuple[T, ...], tuple[T, ...]]:
    """A 1-minimal subset of `items`: interesting, and no longer so when any single item is removed.

    Only removals are asked (the complements of Zeller's ddmin; a subset is what large removals leave):
    everything, halves, quarters, down to single items, and then single items until a whole round removes
    none. At most n(n+1)/2 candidates for the single items and 2n for the rest, which is less than n²+3n.

    Removal goes from the back, because what comes later tends to depend on what comes earlier; so an item is
    the more likely to be kept the earlier it stands.
    """
    kept = items
    for size in chunk_sizes(len(items)):
        if size > 1:
            kept = yield from _sweep(kept, size)
    single: Callable[[tuple[T, ...]], Search[tuple[T, ...], tuple[T, ...]]] = partial(_sweep, size=1)
    return (yield from until_no_progress(kept, (single,)))


def chunk_sizes(count: int) -> Iterator[int]:
    """All of `count` items at once, half of them, a quarter, down to one."""
    size = count
    while size > 1:
        yield size
        size = (size + 1) // 2
    if count:
        yield 1


def chunks_from_the_back(count: int, size: int) -> tuple[slice, ...]:
    """Slices that cut `count` items into runs of `size`, last run first; only the first run may be shorter.

    Removing the j-th of them makes the (j+1)-th the j-th, so that a sweep goes on where it is.
    """
    return tuple(slice(max(0, end - size), end) for end in range(count, 0, -size))


def _without(items: tuple[T, ...], chunk: slice) -> tuple[T, ...]:
    return items[: chunk.start] + items[chunk.stop :]


def _sweep(items: tuple[T, ...], size: int) -> Search[tuple[T, ...], tuple[T, ...]]:
    """Offer to remove each run of `size` items once."""
    passed = 0
    while True:
        chunks = chunks_from_the_back(len(items), size)[passed:]
        index = yield map(partial(_without, items), chunks)
        if index is None:
            return items
        items = _without(items, chunks[index])
        passed += index

"""Bisection: the first of an ordered sequence for which something holds.

The only place that assumes monotonicity, and so the only one that checks it: an index that contradicts the
answer is reported and never hidden. The candidates are indices.
"""

from __future__ import annotations

from dataclasses import dataclass

from exportdoctor.reduce.search import Search


@dataclass(frozen=True)
class Bisected:
    """Where a sequence turns.

    `first` holds and the index before it does not. `exceptions` are checked indices that contradict "does not
    hold below `first`, holds from there on". `unchecked` counts the indices about which nothing was asked.
    """

    first: int
    exceptions: tuple[int, ...]
    unchecked: int

    @property
    def monotone(self) -> bool:
        """Whether nothing that was asked contradicts the answer; proof only when `unchecked` is 0."""
        return not self.exceptions


def bisect(count: int, *, checks: int = 4) -> Search[int, Bisected]:
    """The first of `count` indices that is interesting, given that the last one is: start the drive from it.

    log2(count) questions, and then up to `checks` on each side, evenly spread over what was not asked. A
    search for the layer from which on a tower fails needs them: in a vision tower whose windowed blocks fail
    and whose full-attention blocks pass, "the first that fails" is true, and "all from there on" is not.
    """
    if count < 1:
        raise ValueError("there is nothing to bisect in an empty sequence")
    last = count - 1
    below, high, asked = -1, last, {last}
    while high - below > 1:
        middle = (below + high) // 2
        asked.add(middle)
        if (yield (middle,)) is None:
            below = middle
        else:
            high = middle
    before = _spread([index for index in range(high) if index not in asked], checks)
    after = _spread([index for index in range(high + 1, last) if index not in asked], checks)
    exceptions = (yield from _interesting(before)) + (yield from _not_interesting(after))
    return Bisected(high, exceptions, count - len(asked) - len(before) - len(after))


def _spread(indices: list[int], count: int) -> tuple[int, ...]:
    """At most `count` of `indices`, evenly spread and with both ends."""
    if len(indices) <= count:
        return tuple(indices)
    if count < 2:
        return tuple(indices[:count])
    return tuple(indices[(len(indices) - 1) * i // (count - 1)] for i in range(count))


def _interesting(indices: tuple[int, ...]) -> Search[int, tuple[int, ...]]:
    found: tuple[int, ...] = ()
    while (index := (yield indices)) is not None:
        found, indices = (*found, indices[index]), indices[index + 1 :]
    return found


def _not_interesting(indices: tuple[int, ...]) -> Search[int, tuple[int, ...]]:
    found: tuple[int, ...] = ()
    for index in indices:
        if (yield (index,)) is None:
            found = (*found, index)
    return found

"""Between which two of an ordered list of versions does a failure come or go?

The bisection of `git bisect skip`: a version of which nothing is known is stepped around. Both sides of an answer were
asked twice; a version that answers otherwise the second time is one of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from exportdoctor.reduce.verdict import Verdict


@dataclass(frozen=True)
class Turn:
    """`before` and `after` are indices, asked twice, of which one fails and the other passes.

    Each version in between was asked, and of none is it known whether it fails.
    """

    before: int
    after: int
    fails_before: bool


@dataclass(frozen=True)
class VersionSearch:
    """`ends` are known versions near both ends. `turn` is None if they agree, or fewer than two are known.

    `flaky` are the versions that answered once in one way and once in the other.
    """

    ends: tuple[int, ...]
    turn: Turn | None
    flaky: frozenset[int]


class _Asker:
    """What was answered so far. A version that was asked twice and contradicted itself is unknown."""

    def __init__(self, ask: Callable[[int, bool], Verdict]) -> None:
        self._ask = ask
        self.said: dict[int, Verdict] = {}
        self.twice: set[int] = set()
        self.flaky: set[int] = set()

    def once(self, index: int) -> Verdict:
        if index not in self.said:
            self.said[index] = self._ask(index, False)
        return self.said[index]

    def confirm(self, index: int) -> Verdict:
        first = self.once(index)
        if first is not Verdict.UNKNOWN and index not in self.twice:
            self.twice.add(index)
            if self._ask(index, True) is not first:
                self.flaky.add(index)
                self.said[index] = Verdict.UNKNOWN
        return self.said[index]

    def all(self, verdict: Verdict) -> list[int]:
        return [index for index, said in self.said.items() if said is verdict]


def find_turn(count: int, ask: Callable[[int, bool], Verdict]) -> VersionSearch:
    """Search the versions 0 to `count` - 1. `ask(index, again)`: does this one fail (yes), pass (no), or neither?

    `again` is true the second time. At most two questions for each version; without unknown ones about log2(count) + 4.
    """
    asker = _Asker(ask)
    first = _find_end(range(count), asker)
    last = _find_end(range(count - 1, first, -1), asker) if first is not None else None
    ends = tuple(end for end in (first, last) if end is not None)
    if first is None or last is None or asker.said[first] is asker.said[last]:
        return VersionSearch(ends, None, frozenset(asker.flaky))
    fails_before = asker.said[first] is Verdict.YES
    earlier, later = (Verdict.YES, Verdict.NO) if fails_before else (Verdict.NO, Verdict.YES)
    while True:
        # all of `earlier` stay before all of `later`: only what lies between them is asked
        before = max(index for index in asker.all(earlier) if first <= index < last)
        after = min(index for index in asker.all(later) if first < index <= last)
        left = [index for index in range(before + 1, after) if index not in asker.said]
        if left:
            asker.once(_middle(left))
        elif asker.confirm(before) is earlier and asker.confirm(after) is later:
            return VersionSearch(ends, Turn(before, after, fails_before), frozenset(asker.flaky))


def _find_end(indices: Sequence[int], asker: _Asker) -> int | None:
    """One that is known: in steps that double, since unknown ones come in rows; then from the far end."""
    return next((index for index in _leaps(indices) if asker.confirm(index) is not Verdict.UNKNOWN), None)


def _leaps(indices: Sequence[int]) -> Iterator[int]:
    place, step, near = 0, 1, set()
    while place < len(indices):
        near.add(place)
        yield indices[place]
        place, step = place + step, step * 2
    yield from (indices[place] for place in reversed(range(len(indices))) if place not in near)


def _middle(left: list[int]) -> int:
    """The middle of the longest row without a gap."""
    rows: list[list[int]] = []
    for index in left:
        if rows and rows[-1][-1] == index - 1:
            rows[-1].append(index)
        else:
            rows.append([index])
    longest = max(rows, key=len)
    return longest[len(longest) // 2]

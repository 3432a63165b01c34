"""Sizes that a program takes only together, such as those of a grid and of the patches that it describes."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from exportdoctor.core.records.size_domain import SizeAxis
from exportdoctor.worker.domain.size_axes import Axis, sizes_of_axes
from exportdoctor.worker.domain.sized_inputs import Place

FactOf = Callable[[Axis], SizeAxis]
Violated = Callable[[Mapping[Place, int]], Mapping[str, frozenset[Place]]]
_LARGEST_STEP, _LARGEST_FOLLOWING_STEP = 4, 520
"""By how much one size is changed, and by how much others with it."""
_MOST_TOGETHER, _MOST_ASKED, _SECONDS = 8, 10_000, 20.0
"""How many sizes change together, how many combinations are looked at for each lead, and seconds of processor
time for all."""
_FURTHER = 32
"""So many sizes, and twice as many as before it, are looked at after the first that satisfies a condition."""
_LARGEST_DEGREE = 3
"""A follower's size may go with the square of the lead's, say: the patches of a square picture."""


def join_linked(axes: list[Axis], facts: list[SizeAxis], violated: Violated, fact_of: FactOf) -> None:
    """Of axes that pass at the example's size alone, one leads, and those that must change with it follow.

    A size that follows several (a product, a sum) does so in each of them. `violated` gives the conditions that sizes
    violate, each with the sizes that it is about. Both lists, which are in one order, are changed.
    """
    stuck = [axis for axis, fact in zip(axes, facts, strict=True) if fact.until and _is_stuck(fact)]
    before = [replace(axis, rules=dict(axis.rules), same=dict(axis.same)) for axis in axes]
    links = _Links(axes=before, violated=violated)
    leads: list[str] = []
    following: set[str] = set()
    for lead in stuck:
        if lead.name in following or (found := links.points_of(lead.name)) is None:
            continue
        by, points = found
        leads.append(lead.name)
        for name in points[0].keys() - {lead.name}:
            lead.follow(links.known[name], _through([one[name] for one in points], lead.example, by))
            following.add(name)
        facts[axes.index(lead)] = fact_of(lead)
    for axis in [one for one in axes if one.name in following and one.name not in leads]:
        del facts[axes.index(axis)], axes[axes.index(axis)]


def _through(sizes: Sequence[int], example: int, by: int) -> Callable[[int], int]:
    """The polynomial of least degree with these sizes where the lead has its example's, `by` more, twice `by` more."""
    rows = [list(sizes)]
    while len(rows[-1]) > 1:
        rows.append([right - left for left, right in itertools.pairwise(rows[-1])])

    def follow(size: int) -> int:
        at, factor, found = Fraction(size - example, by), Fraction(1), Fraction(0)
        for order, row in enumerate(rows):
            found += factor * row[0]
            factor *= (at - order) / (order + 1)
        return max(0, math.floor(found))

    return follow


@dataclass(kw_only=True)
class _Links:
    """`axes` as they are before any follows another."""

    axes: list[Axis]
    violated: Violated
    asked: int = 0
    end: float = field(default_factory=lambda: time.thread_time() + _SECONDS)
    known: dict[str, Axis] = field(init=False)

    def __post_init__(self) -> None:
        self.known = {axis.name: axis for axis in self.axes}
        self._answers: dict[frozenset[tuple[str, int]], dict[str, set[str]]] = {}
        self._owners = {place: axis.name for axis in self.axes for place in axis.rules}

    def points_of(self, lead: str) -> tuple[int, list[dict[str, int]]] | None:
        """By how much this axis can be changed, and the sizes of all that change with it: none, one, ... times.

        As many as a polynomial needs with whose sizes two further ones pass; None if there is none.
        """
        self.asked = 0
        for most, by in itertools.product(range(2, _MOST_TOGETHER + 1), range(1, _LARGEST_STEP + 1)):
            for first in self._repair({lead: self.known[lead].example + by}, most):
                points = [{name: self.known[name].example for name in first}, first]
                while len(points) <= _LARGEST_DEGREE + 1:
                    times = len(points)
                    if all(self._pass(self._on_from(points, lead, by, more)) for more in (times, times + 1)):
                        return by, points
                    guess = self._on_from(points, lead, by, times)
                    further = self._repair({lead: guess[lead]}, most, guess)
                    point = next((one for one in further if one.keys() == first.keys()), None)
                    if point is None:
                        break
                    points.append(point)
        return None

    def _on_from(self, points: Sequence[Mapping[str, int]], lead: str, by: int, times: int) -> dict[str, int]:
        example = self.known[lead].example
        rules = {name: _through([one[name] for one in points], example, by) for name in points[0]}
        return {name: rule(example + times * by) for name, rule in rules.items()}

    def _pass(self, sizes: Mapping[str, int]) -> bool:
        return not self._find_violated(sizes)

    def _repair(
        self, sizes: dict[str, int], most: int, guess: Mapping[str, int] | None = None
    ) -> Iterator[dict[str, int]]:
        """These sizes with others changed until nothing is violated, each change where a condition asks for it.

        No more than `most` are changed.
        """
        violated = self._find_violated(sizes)
        if not violated:
            yield sizes
        if not violated or len(sizes) == most:
            return
        free = {text: names - sizes.keys() for text, names in violated.items()}
        text = min(free, key=lambda one: len(free[one]))
        for name in sorted(free[text]):
            first = None
            for place, size in enumerate(self._others(name, sizes, guess)):
                if first is not None and place > 2 * first + _FURTHER:
                    break
                if self.asked >= _MOST_ASKED or time.thread_time() > self.end:
                    return
                changed = {**sizes, name: size}
                left = self._find_violated(changed)
                if text not in left and all(names - changed.keys() for names in left.values()):
                    first = place if first is None else first
                    yield from self._repair(changed, most, guess)

    def _others(self, name: str, sizes: Mapping[str, int], guess: Mapping[str, int] | None) -> Iterator[int]:
        """Sizes of an axis: in proportion to the first that was changed, then from the guess on on both sides."""
        example, (lead, size) = self.known[name].example, next(iter(sizes.items()))
        whole, rest = divmod(example * size, max(1, self.known[lead].example))
        start = (guess or {}).get(name, example)
        near = [start + sign * by for by in range(_LARGEST_FOLLOWING_STEP + 1) for sign in (1, -1)]
        proportional = [whole] if not rest else []
        return (one for one in dict.fromkeys([*proportional, *near]) if one >= 0 and one != example)

    def _find_violated(self, sizes: Mapping[str, int]) -> dict[str, set[str]]:
        """What is violated, with the axes that it is about."""
        key = frozenset(sizes.items())
        if key not in self._answers:
            self.asked += 1
            found = self.violated(sizes_of_axes(sizes, self.axes))
            self._answers[key] = {
                text: {self._owners[one] for one in places if one in self._owners} for text, places in found.items()
            }
        return self._answers[key]


def _is_stuck(fact: SizeAxis) -> bool:
    return not fact.fixed and set(fact.only) <= {0, 1, fact.example} and (bool(fact.only) or fact.highest == -1)

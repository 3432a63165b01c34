"""Which of the differences between a state that works and one that fails make the failure?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Generic, TypeVar

from exportdoctor.reduce.ddmin import ddmin
from exportdoctor.reduce.drive import drive
from exportdoctor.reduce.verdict import Verdict

T = TypeVar("T")


@dataclass(frozen=True)
class DifferenceSearch(Generic[T]):
    """`alone` are items that make the failure by themselves, each for itself.

    If there is none, `together` is a set that makes it, and without any one of its items it does not. `unknown` are
    sets of one item or subsets of `together` of which nothing is known: one of them may do, too.
    """

    alone: tuple[T, ...]
    together: tuple[T, ...]
    unknown: tuple[tuple[T, ...], ...]


def find_differences(
    items: tuple[T, ...], ask: Callable[[tuple[T, ...]], Verdict], *, one_by_one: int
) -> DifferenceSearch[T]:
    """`ask(subset)`: does it fail with these of the differences (yes), pass (no), or neither? All of them must fail.

    Up to `one_by_one` items are asked one at a time first; more are asked in halves, quarters and so on at once.
    """
    known: dict[tuple[T, ...], Verdict] = {}

    def answer(subset: tuple[T, ...]) -> Verdict:
        if subset not in known:
            known[subset] = ask(subset)
        return known[subset]

    if len(items) <= one_by_one:
        alone = tuple(item for item in items if answer((item,)) is Verdict.YES)
        if alone:
            return DifferenceSearch(alone, (), tuple((one,) for one in items if known[(one,)] is Verdict.UNKNOWN))
    found = drive(ddmin(items), answer, start=items).smallest
    smaller = [part for size in range(1, len(found)) for part in combinations(found, size)] if len(found) < 4 else []
    smaller = smaller or [(item,) for item in found]
    found = next((part for part in smaller if answer(part) is Verdict.YES), found)
    unknown = tuple(part for part in smaller if set(part) < set(found) and answer(part) is Verdict.UNKNOWN)
    return DifferenceSearch(found, (), ()) if len(found) == 1 else DifferenceSearch((), found, unknown)

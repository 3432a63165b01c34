"""Sizes that a program takes only together, such as those of a grid and of the patches that it describes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from exportdoctor.core.records.size_domain import SizeAxis
from exportdoctor.worker.domain.size_axes import Axis

Passes = Callable[[Mapping[str, int]], bool]
_LARGEST_STEP, _LARGEST_FOLLOWING_STEP, _MOST_LINKED = 4, 129, 4
"""By how much one size is changed, by how much another one with it, and how many are looked at."""


def join_linked(axes: list[Axis], facts: list[SizeAxis], passes: Passes, fact_of: Callable[[Axis], SizeAxis]) -> None:
    """Axes that pass at the example's size alone, and at others if one follows the other, become one axis.

    Both lists, which are in one order, are changed. `passes` says whether the checks take these sizes of axes.
    """
    stuck = [one.name for one in facts if one.until and _is_stuck(one)]
    for lead, other in itertools.permutations(stuck[:_MOST_LINKED], 2):
        known = {axis.name: axis for axis in axes}
        if lead in known and other in known and (rule := _find_link(known[lead], known[other], passes)) is not None:
            known[lead].follow(known[other], rule)
            place = axes.index(known[other])
            del axes[place], facts[place]
            facts[axes.index(known[lead])] = fact_of(known[lead])


def _find_link(lead: Axis, other: Axis, passes: Passes) -> Callable[[int], int] | None:
    """The size of `other` for each one of `lead`; None if no steps of both pass three times."""
    steps = itertools.product(range(1, _LARGEST_STEP + 1), range(1, _LARGEST_FOLLOWING_STEP + 1))
    for by, step in steps:
        both = ({lead.name: lead.example + n * by, other.name: other.example + n * step} for n in (1, 2, 3))
        if all(map(passes, both)):
            return lambda size: max(0, other.example + (size - lead.example) * step // by)
    return None


def _is_stuck(fact: SizeAxis) -> bool:
    return not fact.fixed and set(fact.only) <= {fact.example} and (bool(fact.only) or fact.highest == -1)

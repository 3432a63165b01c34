"""Sizes as a rule, the sizes on both sides of its boundaries, and ends of a rule that only a run shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from exportdoctor.core.records.size_domain import SizeAxis
from exportdoctor.worker.domain.check_numbers import CheckNumbers

_EVALUATED = 130
"""Sizes from zero on for which checks are evaluated, at least; three times the example's or a divisor's, if more."""
_MOST_EVALUATED = 4100
_LARGEST_RUN = 2**13
"""The largest size at which a program is run to see whether it takes it."""
_MOST_BEYOND = 3
_NEAR = 128
"""Sizes that are looked at for one that passes, below a large one."""


def evaluate_sizes(fact: SizeAxis, numbers: CheckNumbers, passes: Callable[[int], bool]) -> SizeAxis:
    """The rule of the sizes that pass checks with these numbers."""
    until = min(_MOST_EVALUATED, max(_EVALUATED, 3 * fact.example + 2, 3 * numbers.cycle + 2))
    taken = [size for size in range(until + 1) if passes(size)]
    step = math.gcd(*(size - taken[0] for size in taken[1:]))
    highest = highest_size(taken[-1], until, passes, near=max(_NEAR, step, numbers.cycle)) if taken else 0
    rule = describe_sizes(msgspec.structs.replace(fact, until=until), taken, highest)
    return _without_far_gaps(rule, numbers.named, passes)


def describe_sizes(fact: SizeAxis, taken: Sequence[int], highest: int | None) -> SizeAxis:
    """The sizes as a rule: from, to, in steps, without some; or as a list, where no rule is shorter."""
    if not taken:
        return msgspec.structs.replace(fact, highest=-1)
    if len(taken) < 3:
        return msgspec.structs.replace(fact, only=tuple(taken))
    step = math.gcd(*(size - taken[0] for size in taken[1:]))
    known = set(taken)
    gaps = [size for size in range(taken[0], taken[-1], step) if size not in known]
    rule = msgspec.structs.replace(fact, lowest=taken[0], highest=highest, step=step)
    open_end = highest is None or highest > fact.until  # of a list without a rule nothing is known there
    cycle, skipped = _cycle_of(gaps, range(taken[0], fact.until + 1, step)) if open_end else (0, frozenset[int]())
    if cycle:
        irregular = tuple(gap for gap in gaps if gap % cycle not in skipped)
        return msgspec.structs.replace(rule, cycle=cycle, skipped=tuple(sorted(skipped)), but=irregular)
    cut = open_end and any(gap > fact.until // 3 for gap in gaps)
    if len(gaps) > len(taken) // 2:
        return msgspec.structs.replace(fact, only=tuple(taken), cut=cut)
    return msgspec.structs.replace(rule, but=tuple(gaps), cut=cut)


def _cycle_of(gaps: Sequence[int], sizes: range) -> tuple[int, frozenset[int]]:
    """How often the gaps come back, and their rests when divided by that; no cycle where there is none.

    The first third of the sizes may lack gaps of the cycle nowhere, and have more of them.
    """
    missing, first = frozenset(gaps), sizes.stop // 3
    later = [size for size in sizes if size >= first]
    for cycle in range(sizes.step, first + 1, sizes.step):
        if all((size in missing) == (size + cycle in missing) for size in later if size + cycle < sizes.stop):
            rests = frozenset(gap % cycle for gap in gaps if gap >= first)
            holds = rests and all(size in missing for size in sizes if size % cycle in rests)
            return (cycle, rests) if holds else (0, frozenset())
    return 0, frozenset()


def _without_far_gaps(fact: SizeAxis, sizes: Iterable[int], passes: Callable[[int], bool]) -> SizeAxis:
    """The rule without those of these sizes above all that were evaluated that do not pass."""
    if fact.only:
        return fact
    found = [size for size in sizes if size > fact.until and takes(fact, size) and not passes(size)]
    return msgspec.structs.replace(fact, but=(*fact.but, *found))


def highest_size(last: int, until: int, passes: Callable[[int], bool], *, near: int = _NEAR) -> int | None:
    """The largest size that passes, None where no end was found below 2**32; `last` is the largest up to `until`.

    Where any larger size passes, so does one of every `near`.
    """
    if until - last > until // 3:
        return last
    for size in (2 * until, 2**16, 2**24, 2**32):
        if not any(passes(one) for one in range(size, size - near, -1)):
            return _last_before(last, size, passes, near)
    return None


def _last_before(taken: int, refused: int, passes: Callable[[int], bool], near: int) -> int:
    """The largest size that passes, between one that does and one from which on none does."""
    while refused - taken > near:
        middle = (taken + refused) // 2
        found = next((one for one in range(middle, max(taken, middle - near), -1) if passes(one)), None)
        taken, refused = (taken, middle) if found is None else (found, refused)
    return next(one for one in range(refused, taken - 1, -1) if one == taken or passes(one))


def points_of(fact: SizeAxis) -> list[int]:
    """The sizes on both sides of each boundary."""
    if fact.only:
        return sorted({0, 1, *(size + by for size in fact.only[:3] for by in (-1, 0, 1) if size + by >= 0)})
    found = {0, 1, fact.example + 1, fact.example + fact.step}
    if fact.until:
        found |= {fact.lowest, fact.lowest - 1, fact.lowest - fact.step}
        skipped = [size for size in range(fact.lowest, fact.lowest + fact.cycle, fact.step) if _is_skipped(fact, size)]
        for gap in (*fact.but[:2], *skipped[:1]):
            found |= {gap, gap + fact.step}
        if fact.highest is not None:
            found |= {fact.highest, fact.highest + 1, *_next_beyond(fact, fact.highest)}
    else:
        found |= {fact.example - 1, 2 * fact.example}
    return sorted(size for size in found if size >= 0)


def _next_beyond(fact: SizeAxis, highest: int) -> list[int]:
    """The next sizes that the rule would take if it had no end: of multiples, one that only the end refuses.

    More than one where there are gaps, by their longest sequence: which the next ones were is not known.
    """
    gaps, longest, length = frozenset(fact.but), 0, 0
    for size in range(fact.lowest, highest, fact.step):
        length = length + 1 if size in gaps else 0
        longest = max(longest, length)
    first = highest + fact.step
    first = next((size for size in range(first, first + fact.cycle, fact.step) if not _is_skipped(fact, size)), first)
    return [first + more * fact.step for more in range(min(longest, _MOST_BEYOND) + 1)]


def takes(fact: SizeAxis, size: int) -> bool:
    """Whether the rule has this size."""
    if fact.only:
        return size in fact.only
    within = fact.lowest <= size and (fact.highest is None or size <= fact.highest)
    return within and (size - fact.lowest) % fact.step == 0 and not _is_skipped(fact, size)


def _is_skipped(fact: SizeAxis, size: int) -> bool:
    return size in fact.but or (fact.cycle > 0 and size % fact.cycle in fact.skipped)


Run = Literal["answers", "refuses", "refuses values", "not asked"]
"""What comes of a run at a size; it refuses values where others of that size may be taken."""


def ends_by_runs(fact: SizeAxis, run_at: Callable[[int], Run]) -> SizeAxis:
    """The rule up to where the program runs: an operation may refuse sizes that no check does.

    The program is run at the points of the rule and at doubled sizes, then between the last that it takes and the
    first that it refuses. What is refused elsewhere, or for its values, stays in the rule.
    """
    if fact.fixed or fact.partly or fact.only or not fact.until or not takes(fact, fact.example):
        return fact
    doubled = [max(1, fact.example) * 2**power for power in range(1, _LARGEST_RUN.bit_length())]
    far = [_taken_below(fact, size) for size in doubled]
    asked = {size for size in (*points_of(fact), *far) if size <= _LARGEST_RUN and takes(fact, size)}
    found = {size: run_at(size) for size in sorted(asked | {fact.example})}
    known = {size: run == "answers" for size, run in found.items() if run in ("answers", "refuses")}
    if not known.get(fact.example):
        return fact
    ends = []
    for sign in (-1, 1):
        side = sorted((size for size in known if sign * (size - fact.example) >= 0), key=lambda size: sign * size)
        refused = [size for size in side if not known[size]]
        if refused and side[-len(refused) :] == refused:
            last = _between(fact, side[-len(refused) - 1], refused[0], run_at)
            if takes(fact, last + sign * fact.step):  # else a check refuses the next one
                ends.append(last)
            inside = tuple(gap for gap in fact.but if sign * (gap - last) < 0)
            fact = msgspec.structs.replace(fact, but=inside, **{"highest" if sign > 0 else "lowest": last})
    return msgspec.structs.replace(fact, ends_by_runs=tuple(ends))


def _taken_below(fact: SizeAxis, size: int) -> int:
    """The largest size of the rule up to this one, in the last cycle; this one if there is none."""
    first = size - (size - fact.lowest) % fact.step
    return next((one for one in range(first, first - fact.cycle - 1, -fact.step) if takes(fact, one)), first)


def _between(fact: SizeAxis, taken: int, refused: int, run_at: Callable[[int], Run]) -> int:
    """The last size that no operation refuses, from one that the program takes towards one that it refuses."""
    between = range(taken, refused, fact.step if refused > taken else -fact.step)
    sizes = [size for size in between if takes(fact, size)]
    first, end = 0, len(sizes)
    while end - first > 1:
        middle = (first + end) // 2
        if run_at(sizes[middle]) in ("answers", "refuses values"):
            first = middle
        else:
            end = middle
    return sizes[first]

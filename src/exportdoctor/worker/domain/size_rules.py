"""Sizes as a rule, the sizes on both sides of its boundaries, and ends of a rule that only a run shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from exportdoctor.core.records.size_domain import SizeAxis

_LARGEST_RUN = 2**13
"""The largest size at which a program is run to see whether it takes it."""
_NEAR = 128
"""Sizes that are looked at for one that passes, below a large one."""


def describe_sizes(fact: SizeAxis, taken: Sequence[int], highest: int | None) -> SizeAxis:
    """The sizes as a rule: from, to, in steps, without some; or as a list, where no rule is shorter."""
    if not taken:
        return msgspec.structs.replace(fact, highest=-1)
    if len(taken) < 3:
        return msgspec.structs.replace(fact, only=tuple(taken))
    step = math.gcd(*(size - taken[0] for size in taken[1:]))
    gaps = tuple(size for size in range(taken[0], taken[-1], step) if size not in set(taken))
    if len(gaps) > len(taken) // 2:
        return msgspec.structs.replace(fact, only=tuple(taken))
    return msgspec.structs.replace(fact, lowest=taken[0], highest=highest, step=step, but=gaps)


def highest_size(last: int, until: int, passes: Callable[[int], bool]) -> int | None:
    """The largest size that passes, None where no end was found below 2**31; `last` is the largest up to `until`."""
    if until - last > until // 3:
        return last
    for size in (2 * until, 2**16, 2**24):
        near = next((one for one in range(size, size - _NEAR, -1) if passes(one)), None)
        if near is None:
            return _last_before(last, size, passes)
    return None


def _last_before(taken: int, refused: int, passes: Callable[[int], bool]) -> int:
    """The largest size that passes, between one that does and one from which on none does."""
    while refused - taken > _NEAR:
        middle = (taken + refused) // 2
        near = next((one for one in range(middle, max(taken, middle - _NEAR), -1) if passes(one)), None)
        taken, refused = (taken, middle) if near is None else (near, refused)
    return next(one for one in range(refused, taken - 1, -1) if one == taken or passes(one))


def points_of(fact: SizeAxis) -> list[int]:
    """The sizes on both sides of each boundary."""
    if fact.only:
        return sorted({0, 1, *(size + by for size in fact.only[:3] for by in (-1, 0, 1) if size + by >= 0)})
    found = {0, 1, fact.example + 1, fact.example + fact.step}
    if fact.until:
        found |= {fact.lowest, fact.lowest - 1, fact.lowest - fact.step}
        for gap in fact.but[:2]:
            found |= {gap, gap + fact.step}
        if fact.highest is not None:
            found |= {fact.highest, fact.highest + 1}
    else:
        found |= {fact.example - 1, 2 * fact.example}
    return sorted(size for size in found if size >= 0)


def takes(fact: SizeAxis, size: int) -> bool:
    """Whether the rule has this size."""
    if fact.only:
        return size in fact.only
    within = fact.lowest <= size and (fact.highest is None or size <= fact.highest)
    return within and (size - fact.lowest) % fact.step == 0 and size not in fact.but


def ends_by_runs(fact: SizeAxis, runs: Callable[[int], bool | None]) -> SizeAxis:
    """The rule up to where the program runs: an operation may refuse sizes that no check does.

    The program is run at the points of the rule and at doubled sizes, then between the last that it takes and the
    first that it refuses. `runs` gives None for a size that is not asked. What is refused elsewhere stays in the rule.
    """
    if fact.fixed or fact.partly or fact.only or not fact.until or not takes(fact, fact.example):
        return fact
    doubled = [max(1, fact.example) * 2**power for power in range(1, _LARGEST_RUN.bit_length())]
    far = [size - (size - fact.lowest) % fact.step for size in doubled]
    asked = {size for size in (*points_of(fact), *far) if size <= _LARGEST_RUN and takes(fact, size)}
    known = {size: answer for size in sorted(asked | {fact.example}) if (answer := runs(size)) is not None}
    if not known.get(fact.example):
        return fact
    ends = []
    for sign in (-1, 1):
        side = sorted((size for size in known if sign * (size - fact.example) >= 0), key=lambda size: sign * size)
        refused = [size for size in side if not known[size]]
        if refused and side[-len(refused) :] == refused:
            last = _between(fact, side[-len(refused) - 1], refused[0], runs)
            fact = msgspec.structs.replace(fact, **{"highest" if sign > 0 else "lowest": last})
            ends.append(last)
    return msgspec.structs.replace(fact, ends_by_runs=tuple(ends))


def _between(fact: SizeAxis, taken: int, refused: int, runs: Callable[[int], bool | None]) -> int:
    """The last size with which the program runs, from one that it takes towards one that it refuses."""
    between = range(taken, refused, fact.step if refused > taken else -fact.step)
    sizes = [size for size in between if takes(fact, size)]
    first, end = 0, len(sizes)
    while end - first > 1:
        middle = (first + end) // 2
        if runs(sizes[middle]):
            first = middle
        else:
            end = middle
    return sizes[first]

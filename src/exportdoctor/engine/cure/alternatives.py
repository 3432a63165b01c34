"""Other sets that cure as well: the best one with a shim exchanged for another that fits the same failure. Pure.

Bounded in number, because a cure is known already. Every set that is returned has been shown to cure. One that would be
prescribed in place of the best is proved as that was; another is compared on the known input sets, and told as not
proved.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.engine.cure.catalogue import Ids, ShimCatalogue
from exportdoctor.engine.cure.trial import CuringSet, ShimTrial
from exportdoctor.engine.probe_driver import Lookahead, Prefetch, ProbeSteps
from exportdoctor.shims import Shim

MOST_TRIES = 2
"""Sets tried beyond the cure, each an export; the shims of the cure take turns. One that does not apply costs next to
nothing: it neither counts nor takes the turn. Nor does the first that does not cure."""

Turn = tuple[str, deque[Shim]]
"""A shim of the cure, and those that were not yet tried in its place."""


class TryShims(Protocol):
    """Tries a set where that was the failure."""

    def __call__(self, shims: Ids, before: Outcome, /, *, proved: bool) -> ProbeSteps[ShimTrial]: ...


def find_alternatives(
    best: CuringSet,
    catalogue: ShimCatalogue,
    tried: list[ShimTrial],
    try_set: TryShims,
    *,
    probe_of: Callable[..., Probe],
    ahead: Callable[[Ids], Prefetch],
    look_ahead: Callable[[Iterable[Probe]], Lookahead],
    confirm_ahead: Callable[[Ids], Lookahead],
) -> ProbeSteps[tuple[CuringSet, ...]]:
    """`best` and what was found beside it, the soundest first, then those that are right in any memory layout, then
    those that fix the fewest sizes, then those that refuse the fewest drawn inputs, then the smallest, then the first
    that was found.

    Those that could come before the best are asked first, then the first sets side by side, by `probe_of`. `ahead` asks
    ahead what the set that will be prescribed needs, as soon as nothing that is left could take its place. `look_ahead`
    names what is asked next if a set does not cure, `confirm_ahead` what a set needs that will be prescribed if it
    cures, or of the empty set nothing any more.
    """
    found, left, in_vain = [best], MOST_TRIES, False
    turns = deque(_exchanges(best, catalogue))
    firsts = list(itertools.islice(_first_sets(turns, best, catalogue, tried), left))
    leading = dict(itertools.islice(_sets_that_may_lead(turns, best, found, catalogue, tried), left))
    yield Prefetch(tuple(probe_of(shims, proved=True) for shims in leading.values()))
    behind: set[str] = set()
    for new, shims in leading.items():
        outcome = yield probe_of(shims, proved=True)
        if not (outcome.passed or outcome.numbers):
            behind.add(new)
    if settled := not any(_sets_that_may_lead(turns, best, found, catalogue, tried, behind=behind)):
        yield ahead(best.shims)
    yield Prefetch(tuple(probe_of(shims, proved=_would_lead(shims, found, catalogue)) for shims in firsts))
    while turns and left:
        if not settled and not any(_sets_that_may_lead(turns, best, found, catalogue, tried, behind=behind)):
            settled = True
            yield ahead(_leader(found, catalogue).shims)
        name, others = turns.popleft()
        while others:
            shim = others.popleft()
            shims = _exchange(best, name, shim, catalogue)
            if not _is_worth_trying(shims, name, shim.id, best, tried) or _contains_one(shims, found):
                continue
            proved = _would_lead(shims, found, catalogue)
            if settled:  # until then what confirms the best stays named
                following = _first_sets([(name, others), *turns], best, catalogue, tried)
                yield look_ahead(
                    probe_of(one, proved=_would_lead(one, found, catalogue)) for one in (shims, *following)
                )
            trial = yield from try_set(shims, best.failure_of(name), proved=proved)
            if trial.result == "not_applicable":
                continue
            if trial.result != "cured" and not in_vain:
                in_vain = True
                continue
            if trial.result == "cured":
                chain = tuple((shim.id if one == name else one, failure) for one, failure in best.chain)
                other = CuringSet(shims=shims, outcome=trial.outcome, chain=chain, on=best.on, proved=proved)
                found.append((yield from _drop_unneeded(other, shim, found, catalogue, try_set, confirm_ahead)))
            left -= 1
            turns.append((name, others))
            break
    return tuple(sorted(found, key=lambda cured: _shown_place(cured, catalogue)))


def _shown_place(cured: CuringSet, catalogue: ShimCatalogue) -> tuple[int, bool, int, int, int]:
    outcome = cured.outcome
    return (
        catalogue.shown_rank(cured.shims, outcome),
        outcome.wrong_layout is not None,
        len(outcome.fixed or ()),
        len(outcome.refused_sets),
        len(cured.shims),
    )


def _leader(found: list[CuringSet], catalogue: ShimCatalogue) -> CuringSet:
    """The first of those that are proved."""
    return min((cured for cured in found if cured.proved), key=lambda cured: _shown_place(cured, catalogue))


def _would_lead(shims: Ids, found: list[CuringSet], catalogue: ShimCatalogue) -> bool:
    """Whether it would come before all that are proved, if it fixed no size and its proof refused nothing."""
    return (catalogue.rank(shims), False, 0, 0, len(shims)) < _shown_place(_leader(found, catalogue), catalogue)


def _sets_that_may_lead(
    turns: Iterable[Turn],
    best: CuringSet,
    found: list[CuringSet],
    catalogue: ShimCatalogue,
    tried: list[ShimTrial],
    *,
    behind: Container[str] = (),
) -> Iterator[tuple[str, Ids]]:
    """The new shims that would lead, each with the smallest set in which it may: without all the shims whose failures
    it may cure, too, or, where it is known to stay `behind` so, beside those for which it is not exchanged.
    """
    for name, others in turns:
        for shim in others:
            exchange = _exchange(best, name, shim, catalogue)
            if not _is_worth_trying(exchange, name, shim.id, best, tried):
                continue
            kept = (one for one, failure in best.chain if not _fits(shim, failure, catalogue))
            shims = exchange if shim.id in behind else catalogue.put_in_order((*kept, shim.id))
            if _would_lead(shims, found, catalogue):
                yield shim.id, shims


def _exchanges(best: CuringSet, catalogue: ShimCatalogue) -> Iterator[Turn]:
    """Each shim of the best set, and what may stand in its place, the soundest first."""
    for name, failure in best.chain:
        rest = _without(best.shims, name)
        fits = (shim for shim in catalogue.find_fitting(failure) if not _is_in(shim, best, catalogue))
        yield name, deque(shim for shim in fits if not catalogue.clashes(shim, rest))


def _is_in(shim: Shim, best: CuringSet, catalogue: ShimCatalogue) -> bool:
    """Whether the set has it, or moves the work of one function out of the program with that of all others."""
    return shim.id in best.shims or catalogue.in_all_functions(shim.id) in best.shims


def _first_sets(
    turns: Iterable[Turn], best: CuringSet, catalogue: ShimCatalogue, tried: list[ShimTrial]
) -> Iterator[Ids]:
    """The set that each turn begins with."""
    for name, others in turns:
        for shim in others:
            shims = _exchange(best, name, shim, catalogue)
            if _is_worth_trying(shims, name, shim.id, best, tried):
                yield shims
                break


def _exchange(best: CuringSet, name: str, shim: Shim, catalogue: ShimCatalogue) -> Ids:
    return catalogue.put_in_order((*_without(best.shims, name), shim.id))


def _is_worth_trying(shims: Ids, name: str, new: str, best: CuringSet, tried: list[ShimTrial]) -> bool:
    """Not where it was tried, does not apply, or left the failure as it was when nothing else stood in its way."""
    place = [one for one, _ in best.chain].index(name)
    then = {*(one for one, _ in best.chain[:place]), new}
    for trial in tried:
        shims_tried = set(trial.shims)
        if shims_tried == set(shims) or (trial.result == "not_applicable" and new in shims_tried):
            return False
        if shims_tried == then and trial.result in ("same", "error"):
            return False
    return True


def _contains_one(shims: Ids, found: list[CuringSet]) -> bool:
    """Whether a set that cures is part of it: the rest would be to spare."""
    return any(set(cured.shims) <= set(shims) for cured in found)


def _drop_unneeded(
    cured: CuringSet,
    new: Shim,
    found: list[CuringSet],
    catalogue: ShimCatalogue,
    try_set: TryShims,
    confirm_ahead: Callable[[Ids], Lookahead],
) -> ProbeSteps[CuringSet]:
    """Without those of its shims whose failures the new one may cure, too, where it does."""
    for name, failure in cured.chain:
        if name == new.id or not _fits(new, failure, catalogue):
            continue
        less = _without(cured.shims, name)
        if proved := _would_lead(less, found, catalogue):
            yield confirm_ahead(less)
        trial = yield from try_set(less, failure, proved=proved)
        if proved and trial.result != "cured":
            yield confirm_ahead(())
        if trial.result == "cured":
            chain = tuple(pair for pair in cured.chain if pair[0] != name)
            cured = replace(cured, shims=less, outcome=trial.outcome, chain=chain, proved=proved)
    return cured


def _fits(shim: Shim, failure: Outcome, catalogue: ShimCatalogue) -> bool:
    return any(one.id == shim.id for one in catalogue.find_fitting(failure))


def _without(shims: Ids, name: str) -> Ids:
    return tuple(one for one in shims if one != name)

"""Other sets that cure as well: the best one with a shim exchanged for another that fits the same failure. Pure.

Bounded by tries, for they come on top of a cure that is known. Every set that is given has been shown to cure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.engine.cure.catalogue import Ids, ShimCatalogue
from exportdoctor.engine.cure.trial import Cured, Prefetch, Trial
from exportdoctor.shims import Shim

MOST_TRIES = 2
"""Sets asked beyond the cure, each as dear as the cure itself; one that does not apply costs next to nothing and does
not count."""

Attempt = Callable[[Ids, Outcome], Generator[Probe | Prefetch, Outcome, Trial]]
"""Asks a set where that was the failure."""


def with_alternatives(
    best: Cured, stock: ShimCatalogue, tried: list[Trial], attempt: Attempt
) -> Generator[Probe | Prefetch, Outcome, tuple[Cured, ...]]:
    """`best` and what was found beside it, the soundest first, then the smallest, then the first that was found."""
    found, left = [best], MOST_TRIES
    for name, shim in _exchanges(best, stock):
        if not left:
            break
        shims = stock.ordered((*_without(best.shims, name), shim.id))
        if not _worth_asking(shims, name, shim.id, best, tried) or _holds_one(shims, found):
            continue
        trial = yield from attempt(shims, best.failure_of(name))
        left -= trial.result != "not_applicable"
        if trial.result == "cured":
            chain = tuple((shim.id if one == name else one, failure) for one, failure in best.chain)
            other = Cured(shims=shims, outcome=trial.outcome, chain=chain)
            found.append((yield from _with_less(other, shim, stock, attempt)))
    return tuple(sorted(found, key=lambda cured: (stock.rank(cured.shims), len(cured.shims))))


def _exchanges(best: Cured, stock: ShimCatalogue) -> Iterator[tuple[str, Shim]]:
    """A shim of the best set and what may stand in its place: for each the soundest other, then the next soundest."""
    rows = []
    for name, failure in best.chain:
        others = _without(best.shims, name)
        fits = (shim for shim in stock.fitting(failure) if shim.id not in best.shims)
        rows.append([(name, shim) for shim in fits if not stock.clash(shim, others)])
    for row in itertools.zip_longest(*rows):
        yield from (pair for pair in row if pair is not None)


def _worth_asking(shims: Ids, name: str, new: str, best: Cured, tried: list[Trial]) -> bool:
    """Not where it was asked, does not apply, or left the failure as it was when nothing else stood in its way."""
    place = [one for one, _ in best.chain].index(name)
    then = {*(one for one, _ in best.chain[:place]), new}
    for trial in tried:
        asked = set(trial.shims)
        if asked == set(shims) or (trial.result == "not_applicable" and new in asked):
            return False
        if asked == then and trial.result in ("same", "error"):
            return False
    return True


def _holds_one(shims: Ids, found: list[Cured]) -> bool:
    """Whether a set that cures is part of it: the rest would be to spare."""
    return any(set(cured.shims) <= set(shims) for cured in found)


def _with_less(
    cured: Cured, new: Shim, stock: ShimCatalogue, attempt: Attempt
) -> Generator[Probe | Prefetch, Outcome, Cured]:
    """Without those of its shims whose failures the new one may cure, too, where it does."""
    for name, failure in cured.chain:
        if name == new.id or new.id not in {shim.id for shim in stock.fitting(failure)}:
            continue
        less = _without(cured.shims, name)
        trial = yield from attempt(less, failure)
        if trial.result == "cured":
            chain = tuple(pair for pair in cured.chain if pair[0] != name)
            cured = replace(cured, shims=less, outcome=trial.outcome, chain=chain)
    return cured


def _without(shims: Ids, name: str) -> Ids:
    return tuple(one for one in shims if one != name)

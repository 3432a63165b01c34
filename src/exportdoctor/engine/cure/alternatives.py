"""Other sets that cure as well: the best one with a shim exchanged for another that fits the same failure. Pure.

Bounded in number, because a cure is known already. Every set that is returned has been shown to cure. One that would be
prescribed in place of the best is proved as that was; another is compared on the known input sets, and told as not
proved.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.engine.cure.catalogue import Ids, ShimCatalogue
from exportdoctor.engine.cure.trial import CuringSet, ShimTrial, has_no_file
from exportdoctor.engine.probe_driver import Lookahead, Prefetch, ProbeSteps
from exportdoctor.shims import Shim

MOST_ALTERNATIVES = 2
"""Sets tried beyond the cure, each an export; the shims of the cure take turns. One that does not apply costs next to
nothing: it neither counts nor takes the turn. Nor does the first that does not cure."""

Turn = tuple[str, deque[Shim]]
"""A shim of the cure, and those that were not yet tried in its place."""


class Prober(Protocol):
    """Asks what comes of sets of shims on what is searched."""

    def probe_of(self, shims: Ids, *, proved: bool) -> Probe:
        """What asks whether a set cures."""

    def try_set(self, shims: Ids, before: Outcome, *, proved: bool) -> ProbeSteps[ShimTrial]:
        """Try a set where that was the failure."""

    def ask_ahead(self, shims: Ids) -> Prefetch:
        """Ask ahead what a set needs that will be prescribed."""

    def look_ahead(self, probes: Iterable[Probe]) -> Lookahead:
        """Name what is asked next if a set does not cure."""

    def confirm_ahead(self, shims: Ids) -> Lookahead:
        """Name what a set needs that will be prescribed if it cures; of the empty set nothing any more."""


class AlternativeSearch:
    """Exchanges shims of `best`. `tried` are the trials so far, to which the prober adds its own. With `of_files`, a
    program that can be written to a file comes before one that cannot."""

    def __init__(
        self,
        best: CuringSet,
        catalogue: ShimCatalogue,
        tried: list[ShimTrial],
        prober: Prober,
        *,
        of_files: bool,
    ) -> None:
        self._best = best
        self._catalogue = catalogue
        self._tried = tried
        self._prober = prober
        self._of_files = of_files
        self._found = [best]
        self._turns = deque(self._exchanges())
        self._behind: set[str] = set()  # new shims that do not cure in the smallest set in which they may lead
        self._is_settled = False
        self._may_fail_once = True

    def steps(self) -> ProbeSteps[tuple[CuringSet, ...]]:
        """`best` and what was found beside it: those of which a file can be written first, then the soundest, then
        those that are right in any memory layout, then those that fix the fewest sizes, then those that refuse the
        fewest drawn inputs, then the smallest, then the first that was found. One that is proved comes before all.

        Those that could come before the best are asked first, then the first sets side by side.
        """
        left = MOST_ALTERNATIVES
        yield from self._ask_what_may_lead(left)
        yield from self._settle()
        yield Prefetch(tuple(map(self._probe, itertools.islice(self._first_sets(self._turns), left))))
        while self._turns and left:
            yield from self._settle()
            name, others = self._turns.popleft()
            if (yield from self._take_turn(name, others)):
                left -= 1
                self._turns.append((name, others))
        leader = self._leader()
        behind = [cured for cured in self._found if cured is not leader]
        return (leader, *sorted(behind, key=self._shown_place))

    def _ask_what_may_lead(self, most: int) -> ProbeSteps[None]:
        leading = dict(itertools.islice(self._sets_that_may_lead(), most))
        yield Prefetch(tuple(map(self._probe, leading.values())))
        for new, shims in leading.items():
            outcome = yield self._probe(shims)
            if not (outcome.passed or outcome.numbers):
                self._behind.add(new)

    def _settle(self) -> ProbeSteps[None]:
        """Ask ahead what the set needs that will be prescribed, as soon as nothing that is left could take its
        place."""
        if not self._is_settled and not any(self._sets_that_may_lead()):
            self._is_settled = True
            yield self._prober.ask_ahead(self._leader().shims)

    def _take_turn(self, name: str, others: deque[Shim]) -> ProbeSteps[bool]:
        """Try the others in the place of that shim until one counts; whether one did."""
        while others:
            shim = others.popleft()
            shims = self._exchange(name, shim)
            if not self._is_worth_trying(shims, name, shim.id) or self._contains_one(shims):
                continue
            if self._is_settled:  # until then what confirms the best stays named
                following = self._first_sets([(name, others), *self._turns])
                yield self._prober.look_ahead(map(self._probe, (shims, *following)))
            proved = self._would_lead(shims)
            trial = yield from self._prober.try_set(shims, self._best.failure_of(name), proved=proved)
            if trial.result == "not_applicable":
                continue
            if trial.result == "cured":
                chain = tuple((shim.id if one == name else one, failure) for one, failure in self._best.chain)
                cured = CuringSet(shims=shims, outcome=trial.outcome, chain=chain, on=self._best.on, proved=proved)
                self._found.append((yield from self._drop_unneeded(cured, shim)))
            elif self._may_fail_once:
                self._may_fail_once = False
                continue
            return True
        return False

    def _drop_unneeded(self, cured: CuringSet, new: Shim) -> ProbeSteps[CuringSet]:
        """Without those of its shims whose failures the new one may cure, too, where it does."""
        for name, failure in cured.chain:
            if name == new.id or not self._fits(new, failure):
                continue
            less = _without(cured.shims, name)
            if proved := self._would_lead(less):
                yield self._prober.confirm_ahead(less)
            trial = yield from self._prober.try_set(less, failure, proved=proved)
            if proved and trial.result != "cured":
                yield self._prober.confirm_ahead(())
            if trial.result == "cured":
                chain = tuple(pair for pair in cured.chain if pair[0] != name)
                cured = replace(cured, shims=less, outcome=trial.outcome, chain=chain, proved=proved)
        return cured

    # --- which sets there are

    def _exchanges(self) -> Iterator[Turn]:
        """Each shim of the best set, and what may stand in its place, the soundest first."""
        for name, failure in self._best.chain:
            rest = _without(self._best.shims, name)
            fits = (shim for shim in self._catalogue.find_fitting(failure) if not self._is_in(shim))
            yield name, deque(shim for shim in fits if not self._catalogue.clashes(shim, rest))

    def _exchange(self, name: str, shim: Shim) -> Ids:
        return self._catalogue.put_in_order((*_without(self._best.shims, name), shim.id))

    def _first_sets(self, turns: Iterable[Turn]) -> Iterator[Ids]:
        """The set that each turn begins with."""
        for name, others in turns:
            for shim in others:
                shims = self._exchange(name, shim)
                if self._is_worth_trying(shims, name, shim.id):
                    yield shims
                    break

    def _sets_that_may_lead(self) -> Iterator[tuple[str, Ids]]:
        """The new shims that would lead, each with the smallest set in which it may: without all the shims whose
        failures it may cure, too, or, where it is known to stay behind so, beside those for which it is not exchanged.
        """
        for name, others in self._turns:
            for shim in others:
                exchange = self._exchange(name, shim)
                if not self._is_worth_trying(exchange, name, shim.id):
                    continue
                kept = (one for one, failure in self._best.chain if not self._fits(shim, failure))
                shims = exchange if shim.id in self._behind else self._catalogue.put_in_order((*kept, shim.id))
                if self._would_lead(shims):
                    yield shim.id, shims

    def _is_in(self, shim: Shim) -> bool:
        """Whether the best set has it, or moves the work of one function out of the program with that of all others."""
        return shim.id in self._best.shims or self._catalogue.in_all_functions(shim.id) in self._best.shims

    def _is_worth_trying(self, shims: Ids, name: str, new: str) -> bool:
        """Not where it was tried in vain, does not apply, or left the failure as it was when nothing else stood in its
        way."""
        place = [one for one, _ in self._best.chain].index(name)
        then = {*(one for one, _ in self._best.chain[:place]), new}
        for trial in self._tried:
            shims_tried = set(trial.shims)
            if shims_tried == set(shims) and trial.result != "cured":
                return False
            if trial.result == "not_applicable" and new in shims_tried:
                return False
            if shims_tried == then and trial.result in ("same", "error"):
                return False
        return True

    def _contains_one(self, shims: Ids) -> bool:
        """Whether a set that cures is part of it: the rest would be to spare."""
        return any(set(cured.shims) <= set(shims) for cured in self._found)

    def _fits(self, shim: Shim, failure: Outcome) -> bool:
        return any(one.id == shim.id for one in self._catalogue.find_fitting(failure))

    # --- their order

    def _shown_place(self, cured: CuringSet) -> tuple[bool, int, bool, int, int, int]:
        outcome = cured.outcome
        return (
            self._of_files and has_no_file(outcome),
            self._catalogue.shown_rank(cured.shims, outcome),
            outcome.wrong_layout is not None,
            len(outcome.fixed or ()),
            len(outcome.refused_sets),
            len(cured.shims),
        )

    def _leader(self) -> CuringSet:
        """The first of those that are proved."""
        return min((cured for cured in self._found if cured.proved), key=self._shown_place)

    def _would_lead(self, shims: Ids) -> bool:
        """Whether it would come before all that are proved, if it fixed no size and its proof refused nothing."""
        return (False, self._catalogue.rank(shims), False, 0, 0, len(shims)) < self._shown_place(self._leader())

    def _probe(self, shims: Ids) -> Probe:
        return self._prober.probe_of(shims, proved=self._would_lead(shims))


def _without(shims: Ids, name: str) -> Ids:
    return tuple(one for one in shims if one != name)

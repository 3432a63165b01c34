"""The search for a cure of one part: shims in combination, as long as each moves the failure deeper into the forward.

It yields probes and is sent outcomes; it touches no process. It searches on the part's small model where that fails as
the part does, else on the part itself. What cures the small model is then tried on the part at its full size, and
proved there where the part has values. Sound shims come first, so the first set that cures is the soundest that was
found; it is reduced to one that needs each shim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.finding import ShimResult
from exportdoctor.core.failure.identity import same_failure
from exportdoctor.core.failure.kinds import SIZES_REFUSED
from exportdoctor.core.records.outcome import Failure, Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.run.report import Prescription
from exportdoctor.engine.cure.alternatives import AlternativeSearch
from exportdoctor.engine.cure.catalogue import SPECIALISED, CandidateQueue, Chain, Ids, ShimCatalogue, ShimSet
from exportdoctor.engine.cure.prescription import prescription_of
from exportdoctor.engine.cure.trial import (
    SEARCHED_STAGES,
    CuringSet,
    SearchTarget,
    ShimTrial,
    failure_of_numbers,
    has_no_file,
    is_later_failure,
)
from exportdoctor.engine.probe_driver import Lookahead, Prefetch, ProbeSteps
from exportdoctor.reduce import ddmin
from exportdoctor.report.wording import shim_tries as wording
from exportdoctor.shims import Shim

MOST_TRIES = 48
"""Sets tried on one target; a chain of three failures takes about ten. One that does not apply does not count."""
_MOST_TRIES_LATER = 8
"""Where the program exports and fails in a later stage, which takes longer, and for which few shims are known."""

_TRIES_FOR_A_SOUNDER = 4
_MOST_AHEAD = 8
"""Sets that are named as what may be tried next: most that are tried lead nowhere, so that these do follow."""

ConfirmingProbe = Callable[[Ids], Probe]
"""Shims that cure the small model, and what asks whether they cure the part."""

_MODES = frozenset({"strict", "non-strict"})
"""Shims that change the export mode. Behind them failures of the other tracer appear, which are not reported."""


@dataclass
class CureSearch:
    """`root` is the part's own probe, `first` its failure, `small` the probe of its small model. `steps` searches.

    With these shims the program must get as far as `root.to`: through the export, or a stage behind it. `goal` is how
    far the scan asks it to get: what cures is asked as far as that, and the search goes on where it fails there.
    `passing` is the outcome of what gets there. Without `alternatives`, other sets are looked for only where the first
    that cures is not sound.
    """

    root: Probe
    first: Outcome
    small: Probe | None
    values: bool
    shims: Sequence[Shim]
    versions: Mapping[str, str]
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allow: Sequence[str] = ()
    alternatives: bool = True
    goal: str = "export"
    trials: list[ShimTrial] = field(default_factory=list)
    met: list[tuple[Ids, Outcome]] = field(default_factory=list)
    cures: tuple[CuringSet, ...] = ()
    stages: Mapping[str, str] = field(default_factory=dict)
    passing: Outcome | None = None
    prescription: Prescription | None = None
    note: str = ""
    done: bool = False

    def __post_init__(self) -> None:
        self._catalogue = ShimCatalogue(
            shims=self.shims, versions=self.versions, axes=self.axes, allow=self.allow, exporter=self.root.exporter
        )

    @property
    def has_candidates(self) -> bool:
        """Whether a shim is known that may cure the first failure."""
        return bool(self._catalogue.find_fitting(self.first))

    def steps(self) -> ProbeSteps[None]:
        """The whole search. Its result is in `prescription`, and why there is none in `note`."""
        yield from self._search()
        self.done = True

    def _search(self) -> ProbeSteps[None]:
        to = self.root.to
        large = SearchTarget(probe=self.root, first=self.first, values=self.values, name=wording.PART_ITSELF, to=to)
        small = yield from self._small_target()
        target = small or large
        confirm = self._confirming_probe(large, small)
        found = yield from self._find_cure(target, confirm=confirm)
        if found is None:
            return
        found = yield from self._reduce(target, found, confirm=confirm)
        self.cures = (found,)
        if found.outcome.numbers:
            yield Prefetch(((large if large.values else target).ground,))
        if target.values and (self.alternatives or self._rank(found) >= SPECIALISED):
            prober = _TargetProber(self, target, large)
            others = AlternativeSearch(found, self._catalogue, self.trials, prober, of_files=self.goal == "export")
            self.cures = yield from others.steps()
        if small is not None:
            self.cures = yield from self._confirm(large, small, self.cures)
        yield Lookahead(self.root.part)
        if self.cures and self.goal != to:
            target = yield from self._go_on(large, small)
        elif self.cures:
            self.passing = self.cures[0].outcome
        if self.cures:
            compared = large if self.cures[0].on == large.name else target
            ground = (yield compared.ground).ground if self.cures[0].outcome.numbers else None
            self.prescription = prescription_of(self.cures, self._catalogue, ground=ground, stages=self.stages)
            if not self.cures[0].outcome.numbers:
                makes_program = EXPORTERS[self.root.exporter].makes_program
                self.note = self.note or (
                    wording.CURE_WITHOUT_VALUES if makes_program else wording.CURE_WITHOUT_PROGRAM
                )

    def hidden_failures(self) -> list[Outcome]:
        """The failures that were met behind the first: on the way to a cure, or without one in the part's own mode.

        None before the search has ended, and none that was seen only with a size or a value fixed, which may make it.
        """
        if not self.done:
            return []
        met = [(shims, outcome) for shims, outcome in self.met if not self._only_with_fixed(shims, outcome)]
        if self.prescription is not None:
            sets = [set(cured.shims) for cured in self.cures]
            return [outcome for shims, outcome in met if any(set(shims) <= one for one in sets)]
        return [one for shims, one in met if not _MODES.intersection(shims) and not one.numbers]

    def _only_with_fixed(self, shims: Ids, outcome: Outcome) -> bool:
        """Whether these shims fix a size or a value, and the failure was met under no others."""
        if not self._catalogue.fixes(shims):
            return False
        return not any(self._same(one, outcome) for others, one in self.met if not self._catalogue.fixes(others))

    # --- what it searches on

    def _small_target(self) -> ProbeSteps[SearchTarget | None]:
        """The small model, where it fails as the part does."""
        if self.small is None:
            return None
        outcome = yield self.small
        if not self._same(outcome, self.first):
            return None
        return SearchTarget(probe=self.small, first=outcome, values=True, name=wording.ON_SMALL_MODEL, to=self.small.to)

    def _confirm(
        self, large: SearchTarget, small: SearchTarget, cures: tuple[CuringSet, ...]
    ) -> ProbeSteps[tuple[CuringSet, ...]]:
        """The small model's cure at full size; where that fails further on, the search goes on there."""
        best = cures[0]
        if (probe := self._at_full_size(large, best.shims)) != large.with_shims(best.shims):
            outcome = yield probe
            if outcome.passed or (outcome.failure is not None and outcome.failure.stage != "export"):
                return cures  # the program was made
        trial = yield from self._try(large, best.shims, large.first)
        if large.values and trial.result == "cured":
            return (replace(best, outcome=trial.outcome, on=large.name), *cures[1:])
        if trial.outcome.passed:
            return cures
        if trial.outcome.status.says_nothing:
            self.note = wording.not_tried_at_full_size(trial.outcome.note)
            return ()
        if large.values and trial.outcome.numbers:
            self.note = wording.exports_unproved(best.shims, trial.outcome)
            return ()
        again = yield from self._find_cure(large, start=best.shims, first=trial.outcome)
        if again is None:
            self.note = self.note or wording.NOT_AT_FULL_SIZE
            return ()
        again = yield from self._reduce(large, again)
        if large.values:
            return (again,)
        proven = yield from _ask(small, again.shims)
        if self._result(small.first, proven, again.shims) != "cured":
            self.note = wording.NOT_COMPARED_ON_SMALL_MODEL
            return ()
        return (replace(again, outcome=proven, on=small.name),)

    def _confirming_probe(self, large: SearchTarget, small: SearchTarget | None) -> ConfirmingProbe | None:
        return partial(self._at_full_size, large) if small is not None else None

    def _at_full_size(self, large: SearchTarget, shims: Ids) -> Probe:
        """What shows that a small model's cure cures the part: as far as the goal at once, where no numbers are due."""
        if large.values or large.to != "export":
            return large.with_shims(shims)
        return msgspec.structs.replace(self.root, shims=shims, to=self.goal)

    # --- behind the stage that fails

    def _go_on(self, large: SearchTarget, small: SearchTarget | None) -> ProbeSteps[SearchTarget]:
        """Ask the part with what cures it as far as the goal, and search on where that fails.

        Of several sets the first that gets there comes first. It returns what the first set was compared on.
        """
        best, first = self.cures[0], None
        for cured in self.cures:
            outcome = yield msgspec.structs.replace(self.root, shims=cured.shims, to=self.goal)
            if outcome.passed:
                self.cures = (cured, *(one for one in self.cures if one is not cured))
                self.stages, self.passing = outcome.stages, outcome
                return small or large
            first = first or outcome
        assert first is not None
        to = SEARCHED_STAGES.get(first.failure.stage, "") if first.failure is not None else ""
        if to and to != large.to:
            further, further_small = large.at_stage(to, first), None
            if small is not None:
                outcome = yield msgspec.structs.replace(small.probe, shims=best.shims, to=to)
                further_small = small.at_stage(to, outcome) if self._same(outcome, first) else None
            found = yield from self._cure_further(further, further_small, best)
            if found is not None:
                self.cures = (found,)
                return (yield from self._go_on(further, further_small))
        self.stages, self.note = {"export": "pass", **first.stages}, wording.NONE_GETS_FURTHER
        self.met.append((best.shims, first))
        return small or large

    def _cure_further(
        self, large: SearchTarget, small: SearchTarget | None, best: CuringSet
    ) -> ProbeSteps[CuringSet | None]:
        """What gets beyond the failure behind `best`, with these shims or other ones; None where nothing was found."""
        target = small or large
        confirm = self._confirming_probe(large, small)
        found = yield from self._find_cure(target, start=best.shims, chain=best.chain, confirm=confirm)
        if found is None:
            return None
        found = yield from self._reduce(target, found, confirm=confirm)
        confirmed = (yield from self._confirm(large, small, (found,))) if small is not None else (found,)
        return confirmed[0] if confirmed else None

    # --- the search on one target

    def _find_cure(
        self,
        target: SearchTarget,
        *,
        start: Ids = (),
        first: Outcome | None = None,
        chain: Chain = (),
        confirm: ConfirmingProbe | None = None,
    ) -> ProbeSteps[CuringSet | None]:
        """The first set that cures, None where none was found. One that refuses drawn inputs counts as less sound: a
        few sounder ones are tried after it. A guard by which a program refuses sizes is followed as a failure is.
        `start` are shims that it has already, `chain` why each was added. Of a set that has led beyond two failures,
        what `confirm` asks at full size is attempted beside it, where a processor would idle."""
        frontier = CandidateQueue(self._catalogue)
        chain = chain or tuple((name, target.first) for name in start)
        frontier.widen(ShimSet(start, chain, "", target.first, len(chain)), first or target.first)
        found, left = None, MOST_TRIES if target.to == "export" else _MOST_TRIES_LATER
        at_odds: set[str] = set()
        while left and (cheapest := frontier.next(at_odds)) is not None:
            price, candidate = cheapest
            if found is not None and price >= (self._rank(found),):
                break
            ahead = [target.with_shims(shims) for shims in (candidate.shims, *frontier.next_sets(_MOST_AHEAD))]
            if confirm is not None and candidate.depth > 1:
                ahead.insert(1, confirm(candidate.shims))
            yield Lookahead(self.root.part, tuple(ahead))
            trial = yield from self._try(target, candidate.shims, candidate.before, met=frontier.met)
            left -= trial.result != "not_applicable"
            if trial.outcome.failure is not None:
                frontier.note_failure(candidate, trial.outcome)
            if trial.result == "cured":
                cured = CuringSet(shims=candidate.shims, outcome=trial.outcome, chain=candidate.chain, on=target.name)
                if self._rank(cured) == self._catalogue.rank(cured.shims) and cured.outcome.wrong_layout is None:
                    found = cured
                    break
                found, left = found or cured, min(left, _TRIES_FOR_A_SOUNDER)
            if trial.result in ("cured", "error"):
                at_odds.update(candidate.shims)  # they may do better beside others
            if trial.result == "not_applicable" and not trial.outcome.note.startswith(f"{candidate.newest}: "):
                at_odds.update(candidate.shims)  # another one than the newest is what does not apply
            wrong = failure_of_numbers(trial.outcome) if trial.result == "error" else None
            if wrong is not None and self._catalogue.find_fitting(wrong):
                frontier.widen(candidate, wrong)
                self.met.append((candidate.shims, wrong))
            if (refused := trial.outcome.as_refused) is not None and not self._catalogue.fixes(candidate.shims):
                again = any(self._same(refused, one) for one in frontier.met)
                follow = frontier.postpone if again else frontier.widen
                follow(candidate, refused)
            if trial.result == "moved" and not trial.note:
                frontier.widen(candidate, trial.outcome)
                self.met.append((candidate.shims, trial.outcome))
            elif trial.met_before:
                frontier.postpone(candidate, trial.outcome)
                self.met.append((candidate.shims, trial.outcome))
        yield self._confirm_ahead(found, confirm)
        if found is None and not self.note:
            none_cures = wording.NONE_CURES if target.to == "export" else wording.NONE_CURES_LATER
            compared = [trial for trial in self.trials if trial.result == "error" and trial.outcome.numbers]
            of_numbers = target.first.failure is not None and target.first.failure.stage == "numbers"
            if of_numbers:
                none_cures = wording.NONE_CURES_NUMBERS if target.to == "export" else wording.NONE_CURES_FILE
            elif compared and target.to == "export":
                none_cures = wording.exports_unproved(compared[0].shims, compared[0].outcome)
            if self.trials and all(trial.outcome.status.says_nothing for trial in self.trials):
                none_cures = wording.none_attempted(self.trials[0].outcome.note)
            self.note = none_cures if self.trials else wording.NONE_FITS
        return found

    def _rank(self, cured: CuringSet) -> int:
        """One of which no file can be written counts as one that fixes values, where a file is what is asked for."""
        rank = self._catalogue.shown_rank(cured.shims, cured.outcome)
        return max(rank, SPECIALISED) if self._lacks_file(cured) else rank

    def _lacks_file(self, cured: CuringSet) -> bool:
        return self.goal == "export" and has_no_file(cured.outcome)

    def _confirm_ahead(self, cured: CuringSet | None, confirm: ConfirmingProbe | None) -> Lookahead:
        """What may be needed next is what confirms this set, and nothing else that was begun ahead."""
        return Lookahead(self.root.part, (confirm(cured.shims),) if cured is not None and confirm is not None else ())

    def _reduce(
        self, target: SearchTarget, cured: CuringSet, *, confirm: ConfirmingProbe | None = None
    ) -> ProbeSteps[CuringSet]:
        """The smallest subset of `cured` that still cures (ddmin), and refuses no input set that it takes."""
        search, reply, best = ddmin(cured.shims), None, cured
        while True:
            try:
                batch = [self._catalogue.put_in_order(subset) for subset in search.send(reply)]
            except StopIteration:
                return best
            reply = None
            yield Prefetch(tuple(target.with_shims(subset) for subset in batch if subset))
            for index, subset in enumerate(batch):
                if not subset:
                    continue  # without any it fails
                answer = yield from _ask(target, subset)
                cures = self._result(target.first, answer, subset) == "cured"
                if cures and _refused_by(answer) <= _refused_by(best.outcome):
                    chain = tuple(pair for pair in best.chain if pair[0] in subset)
                    reply, best = index, replace(best, shims=subset, outcome=answer, chain=chain)
                    yield self._confirm_ahead(best, confirm)
                    break

    def _try(
        self,
        target: SearchTarget,
        shims: Ids,
        before: Outcome,
        *,
        met: Sequence[Outcome] = (),
        proved: bool = True,
    ) -> ProbeSteps[ShimTrial]:
        """Try a set, and note what came of it."""
        outcome = yield from _ask(target, shims, proved=proved)
        result, note = self._result(before, outcome, shims), wording.try_note(outcome)
        met_before = result == "moved" and not note and any(self._same(outcome, one) for one in met)
        if met_before:
            note = wording.MET_BEFORE
        if result == "error":
            note = note or wording.raised_note(outcome)
        if result == "cured" and not proved:
            note = note or wording.NOT_PROVED
        trial = ShimTrial(shims=shims, before=before, outcome=outcome, result=result, note=note, met_before=met_before)
        self.trials.append(trial)
        return trial

    def _result(self, before: Outcome, after: Outcome, shims: Ids) -> ShimResult:
        if after.status == OutcomeStatus.NOT_APPLICABLE:
            return "not_applicable"
        if after.passed:
            return "cured"
        if after.numbers and after.failure is None:
            specialised = self._catalogue.soundness(shims) == "specialised"
            return "cured" if after.agrees_but_for_layout(may_refuse=specialised) else "error"
        if after.status != OutcomeStatus.FAILED or after.failure is None:
            return "error"
        if self._same(before, after):
            return "same"
        if before.failure is not None and _is_behind_the_export(before.failure) and after.failure.stage == "export":
            return "error"
        return "moved" if is_later_failure(before, after, exporter=self.root.exporter) else "error"

    def _same(self, one: Outcome, other: Outcome) -> bool:
        return same_failure(one, other, exporter=self.root.exporter)


@dataclass(frozen=True)
class _TargetProber:
    """Asks for alternatives on `target`; `large` is the part itself."""

    search: CureSearch
    target: SearchTarget
    large: SearchTarget

    def probe_of(self, shims: Ids, *, proved: bool) -> Probe:
        return self.target.with_shims(shims, proved=proved)

    def try_set(self, shims: Ids, before: Outcome, *, proved: bool) -> ProbeSteps[ShimTrial]:
        return self.search._try(self.target, shims, before, proved=proved)

    def ask_ahead(self, shims: Ids) -> Prefetch:
        is_small = self.target is not self.large
        return Prefetch((self.search._at_full_size(self.large, shims),) if is_small else ())

    def look_ahead(self, probes: Iterable[Probe]) -> Lookahead:
        return Lookahead(self.search.root.part, tuple(probes))

    def confirm_ahead(self, shims: Ids) -> Lookahead:
        asked = (self.target.with_shims(shims), self.search._at_full_size(self.large, shims)) if shims else ()
        return self.look_ahead(asked)


def _is_behind_the_export(failure: Failure) -> bool:
    """Whether it is of a later stage, or a program's that refuses inputs."""
    return failure.stage != "export" or any(fact.type == SIZES_REFUSED for fact in failure.exceptions)


def _refused_by(outcome: Outcome) -> set[tuple[str, str]]:
    """The input sets that a program refuses, by kind and description."""
    return {(row.kind, row.inputs) for row in outcome.numbers if row.refused}


def _ask(target: SearchTarget, shims: Ids, *, proved: bool = True) -> ProbeSteps[Outcome]:
    """What comes of these shims. Numbers are asked for apart where the program has to get beyond the export."""
    outcome = yield target.with_shims(shims, proved=proved)
    if target.to != "export" and target.values and outcome.passed:
        compared = yield target.with_numbers(shims, proved=proved)
        return msgspec.structs.replace(compared, stages={**outcome.stages, **compared.stages})
    return outcome

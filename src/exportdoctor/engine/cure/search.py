"""The search for a cure of one part: shims in combination, as long as each moves the failure deeper into the forward.

A search asks, and is told outcomes; it touches no process. It runs on a ground: the part's small twin where that fails
as the part does, else the part itself. What cures the twin is then asked of the part at its full size. Sound shims come
first, so the first set that cures is the soundest that was found; it is reduced to one that has nothing to spare.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from exportdoctor.core.finding import ShimResult
from exportdoctor.core.outcome import Outcome, OutcomeStatus
from exportdoctor.core.probe import Probe
from exportdoctor.core.report import Prescription
from exportdoctor.engine.cure.alternatives import with_alternatives
from exportdoctor.engine.cure.catalogue import Ids, ShimCatalogue
from exportdoctor.engine.cure.failure_order import is_later_failure
from exportdoctor.engine.cure.frontier import Chain, Frontier
from exportdoctor.engine.cure.prescription import prescription_of
from exportdoctor.engine.cure.trial import (
    Asked,
    Cured,
    Prefetch,
    SearchTarget,
    Trial,
    note_of,
    raised_note,
    right_at_its_size,
)
from exportdoctor.engine.verdicts.same_failure import same_disease
from exportdoctor.reduce import ddmin
from exportdoctor.shims import Shim

MOST_TRIES = 48
"""Sets asked of one ground; a chain of three failures takes about ten."""

_MODES = frozenset({"strict", "non-strict"})
"""Another tracer meets failures of its own."""


@dataclass
class CureSearch:
    """Feed `steps` with outcomes. `root` is the part's own probe, `first` its failure, `twin` the small twin's."""

    root: Probe
    first: Outcome
    twin: Probe | None
    values: bool
    shims: Sequence[Shim]
    versions: Mapping[str, str]
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allow: Sequence[str] = ()
    trials: list[Trial] = field(default_factory=list)
    met: list[tuple[Ids, Outcome]] = field(default_factory=list)
    cures: tuple[Cured, ...] = ()
    prescription: Prescription | None = None
    note: str = ""
    done: bool = False

    def __post_init__(self) -> None:
        self._stock = ShimCatalogue(
            shims=self.shims, versions=self.versions, axes=self.axes, allow=self.allow, exporter=self.root.exporter
        )

    def steps(self) -> Asked:
        """The whole search. Its answer is in `prescription`, and why there is none in `note`."""
        large = SearchTarget(probe=self.root, first=self.first, values=self.values, said="the part itself")
        small = yield from self._small()
        ground = small or large
        found = yield from self._cured(ground)
        if found is None:
            return
        if small is not None:
            yield Prefetch((large.with_shims(found.shims),))  # it takes longest; nearly always nothing is to spare
        found = yield from self._smallest(ground, found)
        self.cures = (found,)
        if ground.values:
            self.cures = yield from self._alternatives(ground, found)
        if small is not None:
            self.cures = yield from self._confirmed(large, small, self.cures)
        if self.cures:
            self.prescription = prescription_of(self.cures, self._stock, on=ground)
            if not self.cures[0].outcome.numbers:
                self.note = "it exports, but no values were at hand to compare its numbers with eager's"

    def hidden(self) -> list[Outcome]:
        """The failures that were met behind the first: on the way to a cure, or without one in the part's own mode.

        None before the search has ended.
        """
        if not self.done:
            return []
        if self.prescription is not None:
            sets = [set(cured.shims) for cured in self.cures]
            return [outcome for shims, outcome in self.met if any(set(shims) <= one for one in sets)]
        return [outcome for shims, outcome in self.met if not _MODES.intersection(shims)]

    # --- the grounds

    def _small(self) -> Generator[Probe | Prefetch, Outcome, SearchTarget | None]:
        """The twin, where it fails as the part does."""
        if self.twin is None:
            return None
        outcome = yield self.twin
        if not self._same(outcome, self.first):
            return None
        return SearchTarget(probe=self.twin, first=outcome, values=True, said="a small twin with random weights")

    def _confirmed(
        self, large: SearchTarget, small: SearchTarget, cures: tuple[Cured, ...]
    ) -> Generator[Probe | Prefetch, Outcome, tuple[Cured, ...]]:
        """The twin's cure at full size; where that fails further on, the search goes on there."""
        best = cures[0]
        trial = yield from self._attempt(large, best.shims, self.first)
        if trial.outcome.passed:
            return cures
        again = yield from self._cured(large, start=best.shims, first=trial.outcome)
        if again is None:
            self.note = self.note or "what cures the small twin does not cure the part at its full size"
            return ()
        again = yield from self._smallest(large, again)
        proven = yield small.with_shims(again.shims)
        if not proven.passed:
            self.note = "its numbers could not be compared with eager's on the small twin"
            return ()
        return (replace(again, outcome=proven),)

    # --- the search on one ground

    def _cured(
        self, ground: SearchTarget, *, start: Ids = (), first: Outcome | None = None
    ) -> Generator[Probe | Prefetch, Outcome, Cured | None]:
        """The first set that cures; None where none was found."""
        frontier = Frontier(self._stock)
        chain: Chain = tuple((name, ground.first) for name in start)
        frontier.widen(start, first or ground.first, chain=chain)
        for _ in range(MOST_TRIES):
            edge = frontier.next()
            if edge is None:
                break
            trial = yield from self._attempt(ground, edge.shims, edge.before, met=frontier.met)
            if trial.result == "cured":
                return Cured(shims=edge.shims, outcome=trial.outcome, chain=edge.chain)
            if trial.result == "moved" and not trial.note:
                frontier.widen(edge.shims, trial.outcome, chain=edge.chain)
                self.met.append((edge.shims, trial.outcome))
        if not self.note:
            self.note = "none of the shims that fit cures it" if self.trials else "no shim fits its failure"
        return None

    def _smallest(self, ground: SearchTarget, cured: Cured) -> Generator[Probe | Prefetch, Outcome, Cured]:
        """Without what is not needed."""
        search, reply, best = ddmin(cured.shims), None, cured
        while True:
            try:
                batch = [self._stock.ordered(subset) for subset in search.send(reply)]
            except StopIteration:
                return best
            reply = None
            yield Prefetch(tuple(ground.with_shims(subset) for subset in batch if subset))
            for index, subset in enumerate(batch):
                if not subset:
                    continue  # without any it fails
                answer = yield ground.with_shims(subset)
                if self._result(ground.first, answer, subset) == "cured":
                    chain = tuple(pair for pair in best.chain if pair[0] in subset)
                    reply, best = index, replace(best, shims=subset, outcome=answer, chain=chain)
                    break

    def _alternatives(
        self, ground: SearchTarget, best: Cured
    ) -> Generator[Probe | Prefetch, Outcome, tuple[Cured, ...]]:
        def attempt(shims: Ids, before: Outcome) -> Generator[Probe | Prefetch, Outcome, Trial]:
            return self._attempt(ground, shims, before)

        return with_alternatives(best, self._stock, self.trials, attempt)

    def _attempt(
        self, ground: SearchTarget, shims: Ids, before: Outcome, *, met: Sequence[Outcome] = ()
    ) -> Generator[Probe | Prefetch, Outcome, Trial]:
        """Ask a set, and note what came of it."""
        outcome = yield ground.with_shims(shims)
        result, note = self._result(before, outcome, shims), note_of(outcome)
        if result == "moved" and any(self._same(outcome, one) for one in met):
            note = note or "a failure that was met before"
        if result == "error":
            note = note or raised_note(outcome)
        trial = Trial(shims=shims, before=before, outcome=outcome, result=result, note=note)
        self.trials.append(trial)
        return trial

    def _result(self, before: Outcome, after: Outcome, shims: Ids) -> ShimResult:
        if after.status == OutcomeStatus.NOT_APPLICABLE:
            return "not_applicable"
        if after.passed:
            return "cured"
        if after.numbers:
            specialised = self._stock.soundness(shims) == "specialised"
            return "cured" if specialised and right_at_its_size(after) else "error"
        if after.status != OutcomeStatus.FAILED or after.failure is None:
            return "error"
        if self._same(before, after):
            return "same"
        return "moved" if is_later_failure(before, after, exporter=self.root.exporter) else "error"

    def _same(self, one: Outcome, other: Outcome) -> bool:
        return same_disease(one, other, exporter=self.root.exporter)

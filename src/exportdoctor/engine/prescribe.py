"""The search for a cure of one part: shims in combination, as long as each moves the failure deeper into the forward.

A search asks, and is told outcomes; it touches no process. It runs on a ground: the part's small twin where that fails
as the part does, else the part itself. What cures the twin is then asked of the part at its full size. Sound shims come
first, so the first set that cures is the soundest that was found; it is reduced to one that has nothing to spare.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from exportdoctor.core.finding import ShimResult
from exportdoctor.core.outcome import Failure, Frame, Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.report import Prescription, Proof, Step
from exportdoctor.engine.diagnosis import kind_of
from exportdoctor.engine.same_disease import same_disease
from exportdoctor.reduce import ddmin
from exportdoctor.shims import SOUNDNESS, Shim, candidates, in_order, seen_in_failure
from exportdoctor.shims.composing import conflict
from exportdoctor.shims.own.frozen import static_axis

MOST_TRIES = 48
"""Sets asked of one ground; a chain of three failures takes about ten."""

_AFTER_TRACING = frozenset({"dims_related", "dynamic_dim_specialised"})
"""Kinds that torch finds when the whole forward has been traced."""

_MODES = frozenset({"strict", "non-strict"})
"""Another tracer meets failures of its own."""

Asked = Generator[Probe, Outcome, None]
Ids = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A set of shims that was asked where `before` was the failure."""

    shims: Ids
    before: Outcome
    outcome: Outcome
    result: ShimResult
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where a search asks. `values`: its tensors have some, so a program's numbers can be compared with eager's."""

    probe: Probe
    first: Outcome
    values: bool
    said: str = ""

    def with_shims(self, shims: Ids) -> Probe:
        """The question with these shims."""
        return msgspec.structs.replace(self.probe, shims=shims, to="run" if self.values else "export")


@dataclass
class Prescriber:
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
    prescription: Prescription | None = None
    note: str = ""
    done: bool = False

    def steps(self) -> Asked:
        """The whole search. Its answer is in `prescription`, and why there is none in `note`."""
        large = Ground(probe=self.root, first=self.first, values=self.values, said="the part itself")
        small = yield from self._small()
        if small is not None:
            found = yield from self._cured(small, start=())
            if found is not None:
                yield from self._confirm(large, small, found)
            return
        found = yield from self._cured(large, start=())
        if found is not None:
            self._prescribe(found[0], found[1], on=large)

    def _small(self) -> Generator[Probe, Outcome, Ground | None]:
        """The twin, where it fails as the part does."""
        if self.twin is None:
            return None
        outcome = yield self.twin
        if not same_disease(outcome, self.first, exporter=self.root.exporter):
            return None
        return Ground(probe=self.twin, first=outcome, values=True, said="a small twin with random weights")

    def _confirm(self, large: Ground, small: Ground, found: tuple[Ids, Outcome]) -> Asked:
        """The twin's cure at full size; where that fails further on, the search goes on there."""
        shims, proven = found
        outcome = yield large.with_shims(shims)
        self._note_trial(shims, self.first, outcome, self._result(self.first, outcome, shims))
        if not outcome.passed:
            again = yield from self._cured(large, start=shims, first=outcome)
            if again is None:
                self.note = self.note or "what cures the small twin does not cure the part at its full size"
                return
            shims = again[0]
            proven = yield small.with_shims(shims)
            if not proven.passed:
                self.note = "its numbers could not be compared with eager's on the small twin"
                return
        self._prescribe(shims, proven, on=small)

    def hidden(self) -> list[Outcome]:
        """The failures that were met behind the first: on the way to the cure, or without one in the part's own mode.

        None before the search has ended.
        """
        if not self.done:
            return []
        if self.prescription is not None:
            return [outcome for shims, outcome in self.met if set(shims) <= set(self.prescription.shims)]
        return [outcome for shims, outcome in self.met if not _MODES.intersection(shims)]

    # --- the search on one ground

    def _cured(
        self, ground: Ground, *, start: Ids, first: Outcome | None = None
    ) -> Generator[Probe, Outcome, tuple[Ids, Outcome] | None]:
        """A smallest set that cures, and the outcome that shows it; None where none was found."""
        frontier = _Frontier(self, ground)
        frontier.widen(start, first or ground.first, depth=0)
        for _ in range(MOST_TRIES):
            edge = frontier.next()
            if edge is None:
                break
            outcome = yield ground.with_shims(edge.shims)
            result = self._result(edge.before, outcome, edge.shims)
            note = _note(outcome)
            if result == "moved" and any(self._same(outcome, met) for met in frontier.met):
                note = note or "a failure that was met before"
            elif result == "moved":
                frontier.widen(edge.shims, outcome, depth=edge.depth + 1)
                self.met.append((edge.shims, outcome))
            self._note_trial(edge.shims, edge.before, outcome, result, note)
            if result == "cured":
                return (yield from self._smallest(ground, edge.shims, outcome))
        if not self.note:
            self.note = "none of the shims that fit cures it" if self.trials else "no shim fits its failure"
        return None

    def _smallest(self, ground: Ground, shims: Ids, outcome: Outcome) -> Generator[Probe, Outcome, tuple[Ids, Outcome]]:
        """Without what is not needed."""
        search, reply, best = ddmin(shims), None, (shims, outcome)
        while True:
            try:
                batch = search.send(reply)
            except StopIteration:
                return best
            reply = None
            for index, subset in enumerate(batch):
                if not subset:
                    continue  # without any it fails
                answer = yield ground.with_shims(self._ordered(subset))
                if self._result(ground.first, answer, subset) == "cured":
                    reply, best = index, (self._ordered(subset), answer)
                    break

    def _result(self, before: Outcome, after: Outcome, shims: Ids) -> ShimResult:
        if after.status == "not_applicable":
            return "not_applicable"
        if after.passed:
            return "cured"
        if after.numbers:
            return "cured" if self._specialised(shims) and _right_at_its_size(after) else "error"
        if after.status != "failed" or after.failure is None:
            return "error"
        if self._same(before, after):
            return "same"
        return "moved" if _deeper(before, after, exporter=self.root.exporter) else "error"

    def _same(self, one: Outcome, other: Outcome) -> bool:
        return same_disease(one, other, exporter=self.root.exporter)

    def _specialised(self, shims: Ids) -> bool:
        return self.soundness_of(shims) == "specialised"

    def soundness_of(self, shims: Ids) -> str:
        """The least sound of them."""
        known = {shim.id: shim.soundness for shim in self._every()}
        found = [SOUNDNESS.index(known[name]) for name in shims]
        return SOUNDNESS[max(found, default=0)]

    def candidates_for(self, outcome: Outcome) -> tuple[Shim, ...]:
        """Shims that may cure this failure, soundest first; each named axis can be frozen by itself."""
        kind = kind_of(outcome, exporter=self.root.exporter)
        failure = outcome.failure or Failure(stage="export", exceptions=())
        seen = seen_in_failure(failure, kind=kind, exporter=self.root.exporter)
        found = candidates(seen, self.versions, allow=self.allow, shims=self.shims)
        if any(shim.id == "static-dim" for shim in found) and len(self.axes) > 1:
            found = (*found, *self._frozen_axes())
        return found

    def _frozen_axes(self) -> tuple[Shim, ...]:
        return tuple(static_axis(axis, places) for axis, places in self.axes.items())

    def _every(self) -> tuple[Shim, ...]:
        return (*self.shims, *self._frozen_axes())

    def _ordered(self, shims: Ids) -> Ids:
        return ordered(shims, self.shims)

    def _note_trial(
        self, shims: Ids, before: Outcome, outcome: Outcome, result: ShimResult, note: str | None = None
    ) -> None:
        said = _note(outcome) if note is None else note
        self.trials.append(Trial(shims=shims, before=before, outcome=outcome, result=result, note=said))

    def _prescribe(self, shims: Ids, outcome: Outcome, *, on: Ground) -> None:
        rows = [row for row in outcome.numbers if not row.trouble]
        proof = Proof(
            inputs_tried=len(rows),
            max_abs_diff=max((row.max_abs for row in rows), default=None),
            max_rel_diff=max((row.max_rel for row in rows), default=None),
            tolerance=min((row.tolerance for row in rows), default=None),
            stage="run" if rows else "export",
            on=on.said if rows else "structure alone, no values",
        )
        known = {shim.id: shim for shim in self._every()}
        steps = tuple(
            Step(shim=name, title=shim.title, soundness=shim.soundness, precondition=shim.precondition)
            for name in shims
            if (shim := known.get(name)) is not None
        )
        self.prescription = Prescription(shims=shims, soundness=self.soundness_of(shims), proof=proof, steps=steps)
        if not rows:
            self.note = "it exports, but no values were at hand to compare its numbers with eager's"


def ordered(names: Ids, shims: Sequence[Shim]) -> Ids:
    """The ids in the order in which they are applied."""
    known = {shim.id: shim for shim in shims}
    first = tuple(shim.id for shim in in_order([known[name] for name in names if name in known]))
    return (*first, *(name for name in names if name not in known))


@dataclass(frozen=True, order=True)
class Edge:
    """A set to ask, the cheapest first: the soundest, then the deepest, then by the newest shim's own rank."""

    price: tuple[int, int, int, int]
    shims: Ids = field(compare=False)
    before: Outcome = field(compare=False)
    depth: int = field(compare=False)


class _Frontier:
    """What can be asked next, and which failures were met."""

    def __init__(self, prescriber: Prescriber, ground: Ground) -> None:
        self.met: list[Outcome] = []
        self._prescriber = prescriber
        self._ground = ground
        self._edges: list[Edge] = []
        self._asked: set[frozenset[str]] = set()
        self._numbers = itertools.count()

    def widen(self, shims: Ids, outcome: Outcome, *, depth: int) -> None:
        """From this failure on, each shim that may cure it can be added."""
        self.met.append(outcome)
        for shim in self._prescriber.candidates_for(outcome):
            added = frozenset((*shims, shim.id))
            if len(added) == len(shims) or added in self._asked or _clash(shim, shims, self._prescriber.shims):
                continue
            self._asked.add(added)
            every = ordered((*shims, shim.id), self._prescriber.shims)
            worst = SOUNDNESS.index(self._prescriber.soundness_of(every))
            price = (worst, -depth, shim.rank, next(self._numbers))
            heapq.heappush(self._edges, Edge(price, every, outcome, depth))

    def next(self) -> Edge | None:
        """The cheapest set that was not asked yet."""
        return heapq.heappop(self._edges) if self._edges else None


def _clash(shim: Shim, shims: Ids, known: Sequence[Shim]) -> bool:
    others = {one.id: one for one in known}
    return any(conflict(shim, name) or (name in others and conflict(others[name], shim.id)) for name in shims)


def _deeper(before: Outcome, after: Outcome, *, exporter: str) -> bool:
    """Whether the second failure comes later in the forward.

    A later line of the same function says so; else that more submodules had been entered, or as many and more nodes
    traced, for a shim may also move work out of the graph. Where no graph tells, a line of a forward must have failed.
    """
    if kind_of(after, exporter=exporter) in _AFTER_TRACING:
        return True
    if before.failure is None or after.failure is None:
        return after.failure is not None
    lines = _lines_apart(before.failure, after.failure)
    if lines > 0:
        return True
    one, other = before.failure, after.failure
    if one.entered is not None and other.entered is not None and one.entered != other.entered:
        return other.entered > one.entered
    if one.traced is not None and other.traced is not None:
        return lines == 0 and other.traced > one.traced
    return other.traced is not None or other.deepest_module is not None


def _lines_apart(one: Failure, other: Failure) -> int:
    """By how many lines the second failure is further down, in the outermost function where they part; 0 = unknown."""
    for first, second in zip(_own(one), _own(other), strict=False):
        if (first.file, first.function) != (second.file, second.function):
            return 0
        if first.line != second.line:
            return second.line - first.line
    return 0


def _own(failure: Failure) -> list[Frame]:
    """The frames of the user's code and its libraries, outermost first, from the first submodule on."""
    return [frame for frame in failure.frames if frame.user]


def _right_at_its_size(outcome: Outcome) -> bool:
    """The example's size has eager's numbers, and every other size is refused aloud."""
    return bool(outcome.numbers) and outcome.numbers[0].holds and all(r.holds or r.trouble for r in outcome.numbers)


def _note(outcome: Outcome) -> str:
    """What there is to say of a try beyond its result."""
    if outcome.status == "not_applicable":
        return outcome.note.partition(": ")[2] or outcome.note  # it begins with the shim's own name
    if outcome.note or outcome.signal:
        return outcome.note or (outcome.signal or "")
    wrong = next((row for row in outcome.numbers if not row.holds), None)
    if wrong is not None:
        what = wrong.trouble or f"differs from eager by {wrong.max_abs:.1e} (allowed {wrong.tolerance:.0e})"
        return f"exports, but on inputs {wrong.inputs}: {what}"
    if outcome.status in ("timed_out", "out_of_memory", "crashed"):
        return outcome.status.replace("_", " ")
    return ""

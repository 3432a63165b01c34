"""Carries probes to the pool and outcomes back to their parts, and yields the events on the way.

What is known already is not attempted again.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait

import msgspec

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.file_hash import unrecorded_reasons
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX, Capture, Captured, Opened, Prepare
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe, probe_template
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.report import NumbersCheck
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.known_answers import KnownAnswers
from exportdoctor.engine.part.part_scan import PartScan
from exportdoctor.engine.pool.attempt_limits import AttemptLimits
from exportdoctor.engine.pool.running_probe import RunningProbe
from exportdoctor.engine.pool.worker_pool import Pool
from exportdoctor.engine.probe_driver import Lookahead, Request
from exportdoctor.report import wording
from exportdoctor.report.wording.export import no_values

_POLL = 0.1


class ProbeScheduler:
    """All parts of one scan share it, so that two parts' attempts run side by side.

    `resumed` are the outcomes of the same run before it was cut off, by the probe's id. `ref` is the target as a
    command line names it, None for a module in memory.
    """

    def __init__(
        self,
        pool: Pool,
        opened: Opened,
        options: ScanOptions,
        *,
        limits: AttemptLimits,
        resumed: Mapping[str, Outcome],
        target: Mapping[str, object],
        ref: TargetRef | None = None,
    ) -> None:
        self.pool = pool
        self.opened = opened
        self.limits = limits
        self.parts: dict[str, PartScan] = {}
        self.peak_rss_mb = 0.0
        self._options = options
        self._resumed = resumed
        self._known = KnownAnswers(resumed, options, target=target, logs=pool.opening.logs)
        self._running: dict[Future[Outcome], list[Probe]] = {}
        self._ready: deque[tuple[Probe, Outcome, bool]] = deque()
        self._early: dict[str, tuple[str, RunningProbe]] = {}
        self._held: deque[Probe] = deque()
        self._ahead: dict[str, tuple[Probe, ...]] = {}
        self._scheduled: set[str] = set()
        self._finding_numbers = itertools.count(1)
        self._searched: set[str] = set()
        self._noted: set[str] = set()
        self._audits = False
        self._follows_up = False
        self._over = False
        self._ref = ref
        self._seed = random.randrange(2**32)

    def close(self) -> None:
        """Put the cache in order, however the scan ends."""
        self._known.distrust(question for part in self.parts.values() for question in part.distrusted)
        self._known.close()

    # --- parts

    def attempt_root_early(self, part: str) -> None:
        """Attempt a part's root while the part is captured: the second processor would idle.

        Not where a forward with values might leave something behind that the exporter then meets.
        """
        options, limits = self._options, self.limits
        alone = options.jobs > 1 and self.opened.isolation == "fork" and self.opened.weights == "fake"
        if not alone or options.modules or EXPORTERS[options.exporter].bakes_values or self._resumed:
            return
        template = msgspec.structs.replace(
            probe_template(part, options), timeout=limits.early_timeout, memory_mb=limits.memory_mb
        )
        begun = self.pool.attempt_early(Prepare(part=part), template)
        if begun is not None:
            prepared, early = begun
            self._early[early.probe.id] = (prepared.question, early)

    def schedule_part(self, captured: Captured) -> Iterator[ev.AnyEvent]:
        """Begin with a part that was captured, and pass on what has finished meanwhile."""
        self._known.note_sources(captured, self.opened)
        part = PartScan(captured, options=self._options, versions=self.opened.environment, target=self._ref)
        self.parts[captured.part] = part
        self.limits.forward_seconds = max(self.limits.forward_seconds, captured.seconds)
        yield from self._take(part.begin())
        yield from self._settle()
        yield from self._drain_finished()

    def run_until_idle(self) -> Iterator[ev.AnyEvent]:
        """Go on until every probe has its outcome, and every search and follow-up probe too."""
        while True:
            idle = not self._running and not self._ready and not self._held
            if idle or self.opened.isolation == "fork":  # else the worker that would build the small model is busy
                yield from self._start_cure_searches()
                yield from self._start_number_checks()
            yield from self._start_follow_ups()
            if not self._running and not self._ready and not self._held:
                if not self._over:
                    yield from self._end_searches()
                    continue
                self._give_up_early_attempts()
                return
            self._fill_idle_jobs()
            wait(self._running, timeout=_POLL, return_when=FIRST_COMPLETED)
            yield from self._drain_finished()

    def _start_follow_ups(self) -> Iterator[ev.AnyEvent]:
        """Once every module has its verdict, beside the searches for cures: audits, then probes of the failures."""
        if not self._audits and all(part.is_judged for part in self.parts.values()):
            self._audits = True
            for part in self.parts.values():
                yield from self._take(part.start_audit(self._seed))
            yield from self._settle()
        if not self._follows_up and all(part.is_judged and part.is_audited for part in self.parts.values()):
            self._follows_up = True
            for part in self.parts.values():
                yield from self._take(part.start_follow_ups())
            yield from self._settle()

    def _end_searches(self) -> Iterator[ev.AnyEvent]:
        """Nothing is asked any more: what is told only when all cures are known is told now."""
        self._over = True
        for part in self.parts.values():
            part.diagnosis.is_over = True
            yield from part.new_findings(self._finding_numbers)

    def _start_cure_searches(self) -> Iterator[ev.AnyEvent]:
        """Begin to search for shims under which each failing part exports.

        As soon as its root has failed: a search makes one probe after the other, and other probes fill the gaps.
        """
        for name, part in self.parts.items() if self._options.cure else ():
            if not part.has_root_failed() or name in self._searched:
                continue
            self._searched.add(name)
            small = self._capture_small_model(name) if self.opened.has_small_model else None
            if isinstance(small, ExportdoctorError):
                yield ev.NoteAdded(text=f"{name}: {small.message}")
                small = None
            values = self.opened.weights != "fake" and part.diagnosis.captured.has_values
            yield from self._take(part.start_cure_search(small, values=values))

    def _start_number_checks(self) -> Iterator[ev.AnyEvent]:
        """Compare the numbers of the parts that pass without values on their small models."""
        for name, part in self.parts.items() if self._options.cure and self.opened.has_small_model else ():
            if name in self._searched or not part.has_numbers_to_compare():
                continue
            self._searched.add(name)
            small = self._capture_small_model(name)
            if isinstance(small, ExportdoctorError):
                part.diagnosis.numbers = NumbersCheck(verdict="unknown", note=no_values(small.message))
            else:
                yield from self._take(part.compare_small_model(small))

    def _capture_small_model(self, part: str) -> Captured | ExportdoctorError:
        """The part of the small model, captured, or why there is none."""
        try:
            found = self.pool.capture_part(Capture(part=part + SMALL_MODEL_SUFFIX, exporter=self._options.exporter))
        except ExportdoctorError as error:
            return error
        self._known.note_sources(found, self.opened)
        return found

    def _capture_at_other_sizes(self, part: PartScan) -> Generator[ev.AnyEvent, None, PartScan]:
        """Its root fails, so its submodules will be asked: now it counts what is dynamic in them."""
        before = part.diagnosis.captured
        found = self.pool.capture_part(Capture(part=before.part, exporter=self._options.exporter))
        self._known.note_sources(found, self.opened)
        yield ev.PartCaptured(captured=found)
        yield from (ev.NoteAdded(text=text) for text in found.notes[len(before.notes) :])
        self.parts[before.part] = part.at_other_sizes(found)
        return self.parts[before.part]

    # --- outcomes

    def _drain_finished(self) -> Iterator[ev.AnyEvent]:
        """Take in what has happened until now; returns without waiting."""
        while not self.pool.started.empty():
            probe, pid = self.pool.started.get()
            yield ev.ProbeStarted(probe=probe, pid=pid)
        for future in [future for future in self._running if future.done()]:
            probe, *others = self._running.pop(future)
            outcome = future.result()
            self.peak_rss_mb = max(self.peak_rss_mb, outcome.peak_rss_mb)
            self.limits.learn(outcome, whole=not probe.fqn)
            self._known.keep(probe, self._question(probe), outcome)
            yield from self._note_once(wording.unrecorded_note(unrecorded_reasons(outcome.sources)))
            self._ready.append((probe, outcome, False))
            self._ready.extend((other, msgspec.structs.replace(outcome, probe=other.id), True) for other in others)
        if self.pool.has_cut_log:
            yield from self._note_once(wording.long_log_note())
        yield from self._settle()

    def _note_once(self, note: str | None) -> Iterator[ev.AnyEvent]:
        if note is not None and note not in self._noted:
            self._noted.add(note)
            yield ev.NoteAdded(text=note)

    def _settle(self) -> Iterator[ev.AnyEvent]:
        """Hand outcomes to their parts; cached ones may lead to more at once."""
        while self._ready:
            probe, outcome, cached = self._ready.popleft()
            if probe.id not in self._resumed:
                yield ev.ProbeFinished(probe=probe, outcome=outcome, cached=cached)
            part = self._part_of(probe)
            unsized = part.diagnosis.captured.at_one_size and self._options.search
            if unsized and not outcome.passed and not part.asked_further(outcome):
                part = yield from self._capture_at_other_sizes(part)
            yield from self._take(part.take(outcome))
            yield from part.new_findings(self._finding_numbers)

    def _take(self, items: Iterator[Request | ev.AnyEvent]) -> Iterator[ev.AnyEvent]:
        for item in items:
            match item:
                case Probe():
                    self._schedule(item)
                case Lookahead():
                    self._look_ahead(item)
                case _:
                    yield item

    # --- probes

    def _look_ahead(self, ahead: Lookahead) -> None:
        """Note what may be needed next; what was begun for it and is not named any more is given up."""
        self._ahead[ahead.part] = ahead.probes
        named = {probe.id for probes in self._ahead.values() for probe in probes}
        likely = {probe.id for probes in self._ahead.values() for probe in self._first_unanswered(probes)}
        for _, early in self._early.values():
            if early.spare and early.probe.id not in (named if early.future.done() else likely):
                early.abandon()

    def _fill_idle_jobs(self) -> None:
        """Attempt what may be needed next, and alternatives to a cure, where a processor would idle. An attempt of the
        part itself begins before these, because it takes longest: an alternative waits for no other probe in its way.
        On a GPU the others would be slower by what may be needed."""
        likely = list(itertools.chain.from_iterable(map(self._first_unanswered, self._ahead.values())))
        if self.opened.device != "cpu":
            likely.clear()
        self._attempt_ahead(probe for probe in likely if not probe.part.endswith(SMALL_MODEL_SUFFIX))
        while self._held and (self.pool.has_idle_job or not self._running):
            self._attempt(self._held.popleft())
        self._attempt_ahead(likely)

    def _attempt_ahead(self, probes: Iterable[Probe]) -> None:
        for probe in probes:
            if not self.pool.has_idle_job:
                return
            if probe.id in self._scheduled or probe.id in self._early:
                continue
            spare = self.pool.attempt_spare(self._with_limits(probe))
            if spare is not None:
                self._early[probe.id] = (self._question(probe), spare)

    def _first_unanswered(self, probes: tuple[Probe, ...]) -> Iterator[Probe]:
        """As many as may run at a time: what comes behind them is too unlikely to be needed."""
        return itertools.islice((probe for probe in probes if not self._is_answered(probe)), self._options.jobs)

    def _is_answered(self, probe: Probe) -> bool:
        _, early = self._early.get(probe.id, ("", None))
        if early is not None:
            return early.future.done()
        return self._known.find(probe, self._question(probe)) is not None

    def _give_up_early_attempts(self) -> None:
        while self._early:
            self.pool.discard(self._early.popitem()[1][1])

    def _with_limits(self, probe: Probe) -> Probe:
        return msgspec.structs.replace(probe, timeout=self.limits.timeout, memory_mb=self.limits.memory_mb)

    def _schedule(self, probe: Probe) -> None:
        self._scheduled.add(probe.id)
        side_by_side = self.opened.isolation == "fork" and self._options.jobs > 1
        may_wait = side_by_side and _is_alternative(probe) and probe.id not in self._early
        if may_wait and not self._is_answered(probe):
            self._held.append(probe)
        else:
            self._attempt(probe)

    def _attempt(self, probe: Probe) -> None:
        question = self._question(probe)
        known = self._known.find(probe, question)
        if known is not None:
            self._ready.append((probe, *known))
            _, early = self._early.pop(probe.id, ("", None))
            if early is not None:
                self.pool.abandon(early)
            return
        same = self._known.running_attempt(probe, question)
        if same is not None and same in self._running:
            self._running[same].append(probe)
            return
        timed = self._with_limits(probe)
        _, early = self._early.get(probe.id, ("", None))
        root, urgent = early is not None and early.root, _is_of_a_search(probe)
        future = self._adopt_early(timed, question) or self.pool.submit(timed, root=root, urgent=urgent)
        self._running[future] = [timed]
        self._known.note_attempt(timed, question, future)

    def _adopt_early(self, probe: Probe, question: str) -> Future[Outcome] | None:
        """The attempt that began before it was needed, where the captures since then left the question as it was."""
        question_then, early = self._early.pop(probe.id, ("", None))
        if early is None:
            return None
        if question_then == question:
            return self.pool.adopt(early, probe)
        self.pool.abandon(early)
        return None

    def _question(self, probe: Probe) -> str:
        return self._part_of(probe).call_fact(probe).question

    def _part_of(self, probe: Probe) -> PartScan:
        return self.parts[probe.part.removesuffix(SMALL_MODEL_SUFFIX)]


def _is_alternative(probe: Probe) -> bool:
    """Whether it asks for another cure, where one is known and proved."""
    return bool(probe.shims) and probe.to == "compare"


def _is_of_a_search(probe: Probe) -> bool:
    """Whether a search for a cure waits for it: such a search makes one probe after the other, and takes longest."""
    return bool(probe.shims) or probe.part.endswith(SMALL_MODEL_SUFFIX)

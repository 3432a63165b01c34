"""Carries probes to the pool and outcomes back to the parts, telling events on the way.

What is known already is not asked again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

import msgspec

from exportdoctor.core import events as ev
from exportdoctor.core.errors import WorkerLost
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.scan import SMALL_MODEL, Capture, Captured, Opened, Prepare
from exportdoctor.engine.known_answers import KnownAnswers
from exportdoctor.engine.part.part_scan import PartScan
from exportdoctor.engine.pool.limits import Limits
from exportdoctor.engine.pool.replies import captured
from exportdoctor.engine.pool.running_probe import Flight
from exportdoctor.engine.pool.worker_pool import Pool
from exportdoctor.engine.scan_request import ScanRequest

_POLL = 0.1
_EARLY = 600.0
"""Seconds of an attempt whose proper limit is found while it runs."""


@dataclass
class ProbeScheduler:
    """All parts of one scan share it, so that two parts' attempts run side by side."""

    pool: Pool
    request: ScanRequest
    opened: Opened
    limits: Limits
    parts: dict[str, PartScan] = field(default_factory=dict)
    flights: dict[Future[Outcome], list[Probe]] = field(default_factory=dict)
    peak_rss_mb: float = 0.0
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _ready: deque[tuple[Probe, Outcome, bool]] = field(default_factory=deque)
    _sought: set[str] = field(default_factory=set)
    _climbing: bool = False
    _early: dict[str, tuple[str, Flight]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._answers = KnownAnswers(self.request, self.opened.sources, self._question)

    def add(self, part: PartScan, *, forward_seconds: float) -> Iterator[ev.AnyEvent]:
        """Begin a part whose eager forward took so long."""
        self.parts[part.name] = part
        self.limits.forward_seconds = max(self.limits.forward_seconds, forward_seconds)
        yield from self._take(part.begin())
        yield from self._settle()

    def begin_early(self, part: str) -> None:
        """Attempt a part's root while the part is captured: the second processor would idle.

        Not where a forward with values might leave something behind that the exporter then meets.
        """
        options = self.request.options
        alone = options.jobs > 1 and self.opened.isolation == "fork" and self.opened.weights == "fake"
        if not alone or options.modules or EXPORTERS[options.exporter].bakes_values or self.request.answers:
            return
        limit = max(self.limits.timeout, _EARLY) if self.limits.fixed is None else self.limits.fixed
        template = Probe(
            part=part, fqn="", exporter=options.exporter, to=options.to, timeout=limit, memory_mb=self.limits.memory_mb
        )
        begun = self.pool.attempt_early(Prepare(part=part), template)
        if begun is not None:
            prepared, flight = begun
            self._early[flight.probe.id] = (prepared.question, flight)

    def run(self) -> Iterator[ev.AnyEvent]:
        """Go on until every question has its answer."""
        while self.flights or self._ready:
            if self.opened.isolation == "fork":  # else the worker that would build the twin is busy
                yield from self._seek_cures()
            yield from self._climb()
            wait(self.flights, timeout=_POLL, return_when=FIRST_COMPLETED)
            yield from self.step()

    def look_deeper(self) -> Iterator[ev.AnyEvent]:
        """Seek cures, and ask what else there is to know of each failure, where that has not begun yet."""
        yield from self._seek_cures()
        yield from self._climb()
        yield from self.run()

    def _climb(self) -> Iterator[ev.AnyEvent]:
        """Once every module has its verdict: down the ladder, beside the searches for cures."""
        if not self._climbing and all(part.judged for part in self.parts.values()):
            self._climbing = True
            for part in self.parts.values():
                yield from self._take(part.climb())
            yield from self._settle()

    def _seek_cures(self) -> Iterator[ev.AnyEvent]:
        """Begin to seek shims under which each failing part exports.

        As soon as its root has failed: a search asks one thing at a time, and the other questions fill the gaps.
        """
        for part in self.parts.values() if self.request.options.cure else ():
            if not part.has_root_failed() or part.name in self._sought:
                continue
            self._sought.add(part.name)
            twin = self._twin_of(part) if self.opened.has_small_model else None
            if isinstance(twin, Refused):
                yield ev.Noted(text=f"{part.name}: {twin.message}")
            found = twin if isinstance(twin, Captured) else None
            yield from self._take(part.seek_cure(found, values=self.opened.weights != "fake"))

    def _twin_of(self, part: PartScan) -> Captured | Refused:
        """The part of the small twin, captured, or why there is none."""
        try:
            return self.pool.capture(Capture(part=part.name + SMALL_MODEL, exporter=self.request.options.exporter))
        except WorkerLost as error:
            return Refused(message=f"There is no small twin: {error.message}")

    def close(self) -> None:
        """Put the cache in order, however the scan ends."""
        self._answers.close()

    def step(self) -> Iterator[ev.AnyEvent]:
        """Tell what has happened until now; returns without waiting."""
        yield from self._started()
        for future in [future for future in self.flights if future.done()]:
            probe, *others = self.flights.pop(future)
            outcome = future.result()
            self.peak_rss_mb = max(self.peak_rss_mb, outcome.peak_rss_mb)
            self.limits.learn(outcome)
            self._answers.keep(probe, outcome)
            self._ready.append((probe, outcome, False))
            self._ready.extend((other, msgspec.structs.replace(outcome, probe=other.id), True) for other in others)
        yield from self._settle()

    def _started(self) -> Iterator[ev.AnyEvent]:
        while not self.pool.started.empty():
            probe, pid = self.pool.started.get()
            yield ev.ProbeStarted(probe=probe, pid=pid)

    def _settle(self) -> Iterator[ev.AnyEvent]:
        """Hand answers to their parts; cached ones may lead to more at once."""
        while self._ready:
            probe, outcome, cached = self._ready.popleft()
            if probe.id not in self.request.answers:
                yield ev.ProbeFinished(probe=probe, outcome=outcome, cached=cached)
            part = self._part_of(probe)
            if part.chart.captured.at_one_size and not outcome.passed:
                part = yield from self._at_other_sizes(part)
            yield from self._take(part.answered(outcome))
            yield from part.telling.new_findings(self.numbers)

    def _at_other_sizes(self, part: PartScan) -> Generator[ev.AnyEvent, None, PartScan]:
        """Its root fails, so its submodules will be asked: now it counts what is dynamic in them."""
        found = captured(self.pool, Capture(part=part.name, exporter=self.request.options.exporter))
        yield ev.PartCaptured(captured=found)
        yield from (ev.Noted(text=text) for text in found.notes[len(part.chart.captured.notes) :])
        self.parts[part.name] = part.at_other_sizes(found)
        return self.parts[part.name]

    def _take(self, items: Iterator[Probe | ev.AnyEvent]) -> Iterator[ev.AnyEvent]:
        for item in items:
            if isinstance(item, Probe):
                self._ask(item)
            else:
                yield item

    def _ask(self, probe: Probe) -> None:
        known = self._answers.known(probe)
        if known is not None:
            self._ready.append((probe, *known))
            _, flight = self._early.pop(probe.id, ("", None))
            if flight is not None:
                self.pool.abandon(flight)
            return
        same = self._answers.on_its_way(probe)
        if same is not None and same in self.flights:
            self.flights[same].append(probe)
            return
        timed = msgspec.structs.replace(probe, timeout=self.limits.timeout, memory_mb=self.limits.memory_mb)
        future = self._adopted(timed) or self.pool.submit(timed, urgent=_is_of_a_search(probe))
        self.flights[future] = [timed]
        self._answers.asked(timed, future)

    def _adopted(self, probe: Probe) -> Future[Outcome] | None:
        """The attempt that began before its part was captured, where the capture left the question as it was."""
        question, flight = self._early.pop(probe.id, ("", None))
        if flight is None:
            return None
        if question == self._question(probe):
            return self.pool.adopt(flight, probe)
        self.pool.abandon(flight)
        return None

    def _question(self, probe: Probe) -> str:
        return self._part_of(probe).call_fact(probe).question

    def _part_of(self, probe: Probe) -> PartScan:
        return self.parts[probe.part.removesuffix(SMALL_MODEL)]


def _is_of_a_search(probe: Probe) -> bool:
    """Whether a search for a cure waits for it: such a search asks one thing after the other, and takes longest."""
    return bool(probe.shims) or probe.part.endswith(SMALL_MODEL)

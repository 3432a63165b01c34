"""Carries probes to the pool and outcomes back to the parts, telling events on the way.

What an earlier process of the same run has answered, or an unchanged earlier run, is not asked again.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

import msgspec

from exportdoctor.core import event as ev
from exportdoctor.core.errors import WorkerLost
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol import TWIN, Capture, Captured, Opened, Prepare, Refused
from exportdoctor.engine.limits import Limits
from exportdoctor.engine.pool import Pool
from exportdoctor.engine.request import ScanRequest
from exportdoctor.engine.scan_part import PartScan
from exportdoctor.engine.watch import Flight
from exportdoctor.store.digest import probe_digest, shared_digest
from exportdoctor.store.outcome_cache import OutcomeCache

_POLL = 0.1
_EARLY = 600.0
"""Seconds of an attempt whose proper limit is found while it runs."""


@dataclass
class Asking:
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
    _same: dict[tuple[str, ...], Future[Outcome]] = field(default_factory=dict)
    _early: dict[str, tuple[str, Flight]] = field(default_factory=dict)
    _cache: OutcomeCache | None = None
    _shared: str = ""

    def __post_init__(self) -> None:
        if self.request.options.use_cache:
            self._cache = OutcomeCache()
            self._shared = shared_digest(self.opened.sources, self.request.options)

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
        if not alone or options.modules or options.exporter == "torchscript" or self.request.answers:
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
            twin = self._twin_of(part) if self.opened.twins else None
            if isinstance(twin, Refused):
                yield ev.Noted(text=f"{part.name}: {twin.message}")
            found = twin if isinstance(twin, Captured) else None
            yield from self._take(part.seek_cure(found, values=self.opened.weights != "fake"))

    def _twin_of(self, part: PartScan) -> Captured | Refused:
        """The part of the small twin, captured, or why there is none."""
        try:
            return self.pool.capture(Capture(part=part.name + TWIN, exporter=self.request.options.exporter))
        except WorkerLost as error:
            return Refused(stage="build", part=part.name, message=f"There is no small twin: {error.message}")

    def close(self) -> None:
        """Put the cache in order, however the scan ends."""
        if self._cache is not None:
            self._cache.close()

    def step(self) -> Iterator[ev.AnyEvent]:
        """Tell what has happened until now; returns without waiting."""
        yield from self._started()
        for future in [future for future in self.flights if future.done()]:
            probe, *others = self.flights.pop(future)
            outcome = future.result()
            self.peak_rss_mb = max(self.peak_rss_mb, outcome.peak_rss_mb)
            self.limits.learn(outcome)
            self._keep(probe, outcome)
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
            yield from self._take(part.answered(outcome))
            yield from part.new_findings(self.numbers)

    def _take(self, items: Iterator[Probe | ev.AnyEvent]) -> Iterator[ev.AnyEvent]:
        for item in items:
            if isinstance(item, Probe):
                self._ask(item)
            else:
                yield item

    def _ask(self, probe: Probe) -> None:
        known = self.request.answers.get(probe.id)
        if known is not None:
            self._ready.append((probe, known, False))
            return
        cached = self._cached(probe)
        if cached is not None:
            self._ready.append((probe, cached, True))
            return
        if self._answered_for_another_part(probe):
            return
        timed = msgspec.structs.replace(probe, timeout=self.limits.timeout, memory_mb=self.limits.memory_mb)
        future = self._adopted(timed) or self.pool.submit(timed)
        self.flights[future] = [timed]
        if _shared_by_parts(probe):
            self._same[self._question_of(probe)] = future

    def _answered_for_another_part(self, probe: Probe) -> bool:
        """Whether the same submodule with an equal question was asked as another part's; that answer counts here."""
        same = self._same.get(self._question_of(probe)) if _shared_by_parts(probe) else None
        if same is None or same.cancelled():
            return False
        if same in self.flights:
            self.flights[same].append(probe)
            return True
        outcome = same.result()
        if outcome.status not in ("passed", "failed"):
            return False
        self._ready.append((probe, msgspec.structs.replace(outcome, probe=probe.id), True))
        return True

    def _question_of(self, probe: Probe) -> tuple[str, ...]:
        question = self._part_of(probe).call_fact(probe).question
        return (question, probe.fqn, probe.exporter, probe.to, probe.variant)

    def _adopted(self, probe: Probe) -> Future[Outcome] | None:
        """The attempt that began before its part was captured, where the capture left the question as it was."""
        question, flight = self._early.pop(probe.id, ("", None))
        if flight is None:
            return None
        if question == self._part_of(probe).call_fact(probe).question:
            return self.pool.adopt(flight, probe)
        self.pool.abandon(flight)
        return None

    def _part_of(self, probe: Probe) -> PartScan:
        return self.parts[probe.part.removesuffix(TWIN)]

    def _key(self, probe: Probe) -> str | None:
        """The cache's key; None for a question that means nothing outside this run's processes."""
        question = self._part_of(probe).call_fact(probe).question
        if question.startswith("~"):
            return None
        return probe_digest(
            question + probe.variant, exporter=probe.exporter, to=probe.to, shims=probe.shims, rest=self._shared
        )

    def _cached(self, probe: Probe) -> Outcome | None:
        key = self._key(probe) if self._cache is not None else None
        found = self._cache.get(key) if self._cache is not None and key is not None else None
        if found is None:
            return None
        log = found.log if found.log and os.path.exists(found.log) else None
        return msgspec.structs.replace(found, probe=probe.id, log=log)

    def _keep(self, probe: Probe, outcome: Outcome) -> None:
        key = self._key(probe) if self._cache is not None else None
        if self._cache is not None and key is not None:
            self._cache.put(key, outcome)


def _shared_by_parts(probe: Probe) -> bool:
    """Whether an equal question of another part has the same answer: a child's captured outputs are not in it."""
    return not probe.shims and not probe.watch and not probe.opaque

"""What is known already: answers of the same run before it was cut off, of earlier runs, and of its other parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.engine.scan_request import ScanRequest
from exportdoctor.store.digest import probe_digest, shared_digest
from exportdoctor.store.outcome_cache import OutcomeCache


@dataclass
class KnownAnswers:
    """`question` tells the captured question that a probe is about; `sources` are what every answer rests on."""

    request: ScanRequest
    sources: Mapping[str, str]
    question: Callable[[Probe], str]
    _same: dict[tuple[str, ...], Future[Outcome]] = field(default_factory=dict)
    _cache: OutcomeCache | None = None
    _shared: str = ""

    def __post_init__(self) -> None:
        if self.request.options.use_cache:
            self._cache = OutcomeCache()
            self._shared = shared_digest(self.sources, self.request.options)

    def known(self, probe: Probe) -> tuple[Outcome, bool] | None:
        """The answer, and whether it is to be told as one that was given before."""
        resumed = self.request.answers.get(probe.id)
        if resumed is not None:
            return resumed, False
        found = self._cached(probe) or self._of_another_part(probe)
        return None if found is None else (found, True)

    def on_its_way(self, probe: Probe) -> Future[Outcome] | None:
        """The attempt on the same submodule with an equal question, asked as another part's."""
        return self._same.get(self._key_within_run(probe)) if _shared_by_parts(probe) else None

    def asked(self, probe: Probe, future: Future[Outcome]) -> None:
        """It was put to the pool."""
        if _shared_by_parts(probe):
            self._same[self._key_within_run(probe)] = future

    def keep(self, probe: Probe, outcome: Outcome) -> None:
        """For later runs."""
        key = self._key(probe) if self._cache is not None else None
        if self._cache is not None and key is not None:
            self._cache.add(key, outcome)

    def close(self) -> None:
        """Put the cache in order."""
        if self._cache is not None:
            self._cache.close()

    def _cached(self, probe: Probe) -> Outcome | None:
        key = self._key(probe) if self._cache is not None else None
        found = self._cache.get(key) if self._cache is not None and key is not None else None
        if found is None:
            return None
        log = found.log if found.log and os.path.exists(found.log) else None
        return msgspec.structs.replace(found, probe=probe.id, log=log)

    def _of_another_part(self, probe: Probe) -> Outcome | None:
        same = self.on_its_way(probe)
        if same is None or not same.done() or same.cancelled():
            return None
        outcome = same.result()
        return msgspec.structs.replace(outcome, probe=probe.id) if outcome.status.is_conclusive else None

    def _key(self, probe: Probe) -> str | None:
        """The cache's key; None for a question that means nothing outside this run's processes."""
        question = self.question(probe)
        if question.startswith("~"):
            return None
        return probe_digest(
            question + probe.variant, exporter=probe.exporter, to=probe.to, shims=probe.shims, rest=self._shared
        )

    def _key_within_run(self, probe: Probe) -> tuple[str, ...]:
        return (self.question(probe), probe.fqn, probe.exporter, probe.to, probe.variant)


def _shared_by_parts(probe: Probe) -> bool:
    """Whether an equal question of another part has the same answer: a child's captured outputs are not in it."""
    return not probe.shims and not probe.watch and not probe.opaque

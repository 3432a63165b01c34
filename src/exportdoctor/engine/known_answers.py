"""What is known already: outcomes of the same run before it was cut off, of earlier runs, and of its other parts.

A probe's `question` is the digest of what it is about (CallFact.question): equal questions have equal answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future

import msgspec

from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.store.digest import probe_digest, shared_digest
from exportdoctor.store.outcome_cache import OutcomeCache


class KnownAnswers:
    """`resumed` maps a probe's id to its outcome, `sources` each file that the answers depend on to its digest."""

    def __init__(self, resumed: Mapping[str, Outcome], sources: Mapping[str, str], options: ScanOptions) -> None:
        self._resumed = resumed
        self._running: dict[tuple[str, ...], Future[Outcome]] = {}
        self._cache = OutcomeCache() if options.use_cache else None
        self._shared = shared_digest(sources, options) if options.use_cache else ""

    def find(self, probe: Probe, question: str) -> tuple[Outcome, bool] | None:
        """The answer, and whether an event should call it cached."""
        resumed = self._resumed.get(probe.id)
        if resumed is not None:
            return resumed, False
        found = self._cached_outcome(probe, question) or self._outcome_of_another_part(probe, question)
        return None if found is None else (found, True)

    def running_attempt(self, probe: Probe, question: str) -> Future[Outcome] | None:
        """The attempt on the same submodule with an equal question, made for another part."""
        return self._running.get(_key_within_run(probe, question)) if _is_shared_by_parts(probe) else None

    def note_attempt(self, probe: Probe, question: str, future: Future[Outcome]) -> None:
        """Record a submitted attempt, so that another part with an equal question waits for it."""
        if _is_shared_by_parts(probe):
            self._running[_key_within_run(probe, question)] = future

    def keep(self, probe: Probe, question: str, outcome: Outcome) -> None:
        """Keep an outcome for later runs."""
        if self._cache is not None and _means_something_later(question):
            self._cache.add(probe_digest(question, probe, rest=self._shared), outcome)

    def close(self) -> None:
        """Evict old entries from the cache and close it."""
        if self._cache is not None:
            self._cache.close()

    def _cached_outcome(self, probe: Probe, question: str) -> Outcome | None:
        if self._cache is None or not _means_something_later(question):
            return None
        found = self._cache.get(probe_digest(question, probe, rest=self._shared))
        if found is None:
            return None
        log = found.log if found.log and os.path.exists(found.log) else None
        return msgspec.structs.replace(found, probe=probe.id, log=log)

    def _outcome_of_another_part(self, probe: Probe, question: str) -> Outcome | None:
        same = self.running_attempt(probe, question)
        if same is None or not same.done() or same.cancelled():
            return None
        outcome = same.result()
        return msgspec.structs.replace(outcome, probe=probe.id) if outcome.status.is_conclusive else None


def _means_something_later(question: str) -> bool:
    """Whether the question means something outside this run's processes."""
    return not question.startswith("~")


def _key_within_run(probe: Probe, question: str) -> tuple[str, ...]:
    return (question, probe.fqn, probe.exporter, probe.to, probe.variant)


def _is_shared_by_parts(probe: Probe) -> bool:
    """Whether an equal question of another part has the same answer: a child's captured outputs are not in it."""
    return not probe.shims and not probe.watch and not probe.opaque

"""What is known already: outcomes of the same run before it was cut off, of earlier runs, and of its other parts.

A probe's `question` is the digest of what it is about (CallFact.question): equal questions have equal answers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

import msgspec

from exportdoctor.core.file_hash import UNRECORDED
from exportdoctor.core.protocol.scan import Captured, Opened
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.store.digest import changed_sources, probe_digest, shared_digest
from exportdoctor.store.outcome_cache import OutcomeCache


class KnownAnswers:
    """`resumed` maps a probe's id to its outcome. `target` is what the target says that its answers depend on.

    `logs` is the folder of this run's logs: those of earlier runs are copied there with their answers.
    """

    def __init__(
        self,
        resumed: Mapping[str, Outcome],
        options: ScanOptions,
        *,
        target: Mapping[str, object],
        logs: str | None = None,
    ) -> None:
        self._resumed = resumed
        self._running: dict[tuple[str, ...], Future[Outcome]] = {}
        self._cache = OutcomeCache() if options.use_cache else None
        self._options = options
        self._target = target
        self._logs = logs
        self._shared: dict[str, str | None] = {}
        self._keys: dict[str, set[str]] = {}

    def note_sources(self, captured: Captured, opened: Opened) -> None:
        """What was read up to the end of a part's capture, of which more may be known when it is captured again."""
        part, sources = captured.part, {**opened.sources, **captured.sources}
        if self._cache is not None:
            comparable = not any(what.startswith(UNRECORDED) for what in sources)
            self._shared[part] = shared_digest(sources, self._options, self._target) if comparable else None

    def find(self, probe: Probe, question: str) -> tuple[Outcome, bool] | None:
        """The answer, and whether an event should call it cached."""
        resumed = self._resumed.get(probe.id)
        if resumed is not None:
            return resumed, False
        if probe.fresh:
            return None
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
        key = self._key(probe, question)
        comparable = not any(what.startswith(UNRECORDED) for what in outcome.sources)
        if self._cache is not None and key is not None and comparable and not probe.fresh:
            self._cache.add(key, outcome)

    def distrust(self, questions: Iterable[str]) -> None:
        """Drop the stored answers of questions that are not equal where they seem to be."""
        if self._cache is None:
            return
        for question in questions:
            for key in self._keys.pop(question, ()):
                self._cache.remove(key)

    def close(self) -> None:
        """Evict old entries from the cache and close it."""
        if self._cache is not None:
            self._cache.close()

    def _cached_outcome(self, probe: Probe, question: str) -> Outcome | None:
        key = self._key(probe, question)
        found = self._cache.get(key) if self._cache is not None and key is not None else None
        if found is None or changed_sources(found.sources):
            return None
        log = self._copy_log(found, probe) if found.log else None
        if found.log and log is None and found.status is OutcomeStatus.FAILED and not probe.shims:
            return None  # a failure without its stack trace is asked again
        return msgspec.structs.replace(found, probe=probe.id, log=log)

    def _copy_log(self, found: Outcome, probe: Probe) -> str | None:
        """The log of an earlier run's attempt as one of this run, which outlives that run; None where it is gone."""
        if found.log is None or self._logs is None:
            return found.log if found.log and os.path.exists(found.log) else None
        copied = os.path.join(self._logs, f"{probe.id}.log")
        try:
            shutil.copyfile(found.log, copied)
        except shutil.SameFileError:
            return copied
        except OSError:
            return None
        return copied

    def _key(self, probe: Probe, question: str) -> str | None:
        """None where the answer means nothing to a later run."""
        rest = self._shared.get(probe.part)
        if rest is None or not _means_something_later(question):
            return None
        key = probe_digest(question, probe, rest=rest)
        self._keys.setdefault(question, set()).add(key)
        return key

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
    return not probe.shims and not probe.watch and not probe.opaque and not probe.fresh

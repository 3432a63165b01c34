"""Finds the finished run that answers a repeated request.

A run is reused only while its folder exists and every source file it depended on has the same content.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import msgspec

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import RunState
from exportdoctor.store.atomic_write import replace_file
from exportdoctor.store.digest import changed_sources, sources_of
from exportdoctor.store.places import cache_home
from exportdoctor.store.run_folder import LOGS
from exportdoctor.store.runs import StoredRun, read_run

_KEPT = 500
_NOTHING_CHANGED = "Nothing has changed since run {}; its results are shown."
_REPLAYED = re.compile(_NOTHING_CHANGED.format(r"\S+"))
F = TypeVar("F", Finding, Outcome)


class _Entry(msgspec.Struct, frozen=True):
    """Where the run is that answered a request."""

    run: str
    path: str


class RunCache:
    """An index of finished runs by request digest. Whatever goes wrong in it is a miss, never an error."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_home() / "requests"

    def find(self, digest: str) -> StoredRun | None:
        """The run that answers the request, if nothing that it depends on has changed."""
        try:
            entry: _Entry = decode((self.root / f"{digest}.json").read_bytes(), _Entry)
            stored = read_run(Path(entry.path))
        except (OSError, ExportdoctorError):
            return None
        if stored.run != entry.run or not is_reusable(stored.state):
            return None
        logs = Path(entry.path) / LOGS
        if any(one.log and _at_home(one, logs).log is None for one in stored.state.findings.values()):
            return None  # its failures are asked again, for their stack traces
        return None if changed_sources(sources_of(stored.events)) else stored

    def remember(self, digest: str, *, run: str, path: Path, state: RunState) -> None:
        """Map this request to the run in `path`, if the run ended in a way that may be reused."""
        if not is_reusable(state):
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            replace_file(self.root / f"{digest}.json", encode(_Entry(run, str(path.absolute()))))
            self._forget_oldest()
        except (OSError, ExportdoctorError):
            return

    def _forget_oldest(self) -> None:
        entries = sorted(self.root.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for file in entries[:-_KEPT]:
            file.unlink(missing_ok=True)


def is_reusable(state: RunState) -> bool:
    """Whether a run ended by itself and would end so again: time and memory limits decided none of its answers."""
    done = state.finished
    if done is None or not done.complete or done.error:
        return False
    return all(outcome.status.is_repeatable for outcome in state.answers.values())


def replay(earlier: StoredRun, *, started: ev.RunStarted, logs: Path) -> Generator[ev.AnyEvent]:
    """The events of an earlier run as those of the run that `started` now, whose logs are in `logs`.

    Its answers are marked as cached; the time it takes is its own.
    """
    begun = time.time()
    yield started
    for event in earlier.events:
        now = time.time()
        match event:
            case ev.RunStarted() | ev.RunResumed() | ev.ProbeStarted() | ev.StepStarted():
                continue
            case ev.NoteAdded(text=text) if _REPLAYED.fullmatch(text):
                continue
            case ev.ProbeFinished(probe=probe, outcome=outcome):
                yield ev.ProbeFinished(at=now, probe=probe, outcome=_at_home(outcome, logs), cached=True)
            case ev.FindingMade(finding=finding):
                yield ev.FindingMade(at=now, finding=_at_home(finding, logs))
            case ev.RunFinished():
                yield ev.NoteAdded(at=now, text=_NOTHING_CHANGED.format(earlier.run))
                yield msgspec.structs.replace(event, at=now, seconds=now - begun, peak_rss_mb=0.0)
            case _:
                yield msgspec.structs.replace(event, at=now)


def _at_home(fact: F, logs: Path) -> F:
    """The same fact with its log in this run's folder, if it is there; without one where it is gone."""
    here = str(logs / Path(fact.log).name) if fact.log else ""
    found = next((log for log in (here, fact.log) if log and os.path.exists(log)), None)
    return msgspec.structs.replace(fact, log=found)

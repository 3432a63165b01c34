"""Reads a run's events as they are appended and folds them into views.

RunFold gives the same view however the events were divided into batches. RunFollower runs in a thread of its own and
touches no widget: it hands each view to a function.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import RunState
from exportdoctor.store import journal, lock
from exportdoctor_tui.state.run_view import PartView, RunView, is_plain, part_view, running_attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from exportdoctor.core.records.outcome import Outcome
    from exportdoctor.store.runs import RunStatus

PAUSE = 0.1  # seconds between two reads of the file
_LOCK_PAUSE = 1.0
_BETWEEN_VIEWS = 0.25
_SHARE = 50  # trees of a large run take at most one part in so many of the time, or keys would lag


class RunFold:
    """A run being read. `view` recomputes only the parts that changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = RunState()
        self._failed: dict[tuple[str, str], Outcome] = {}
        self._parts: dict[str, PartView] = {}
        self._stale: set[str] = set()

    def take(self, events: Iterable[ev.AnyEvent]) -> None:
        """Fold events in."""
        for event in events:
            self.state.apply(event)
            match event:
                case ev.PartCaptured(captured=captured):
                    self._stale.add(captured.part)
                case ev.ModuleJudged(part=part) | ev.PartFinished(part=part):
                    self._stale.add(part)
                case ev.FindingMade(finding=finding):
                    self._stale.add(finding.part)
                case ev.ProbeFinished(probe=probe, outcome=outcome) if not outcome.passed and is_plain(probe):
                    self._failed[probe.part, probe.fqn] = outcome
                case _:
                    pass

    def view(self, *, held: bool, problem: str = "", trees: bool = True) -> RunView:
        """The run now. `held`: a process writes to its folder. Without `trees` those of the last view are kept."""
        state = self.state
        if trees:
            for name in self._stale & state.parts.keys():
                self._parts[name] = part_view(state.parts[name], self._failed, state.findings)
            self._stale.clear()
        report = _without_parts(state).report()
        return RunView(
            run=report.run,
            path=str(self.path),
            status=self._status(held),
            started=state.started,
            finished=state.finished,
            parts=tuple(self._parts[name] for name in state.parts if name in self._parts),
            findings=dict(state.findings),
            target=report.target,
            environment=report.environment,
            stats=report.stats,
            attempts=tuple(running_attempt(*running) for running in state.running.values()),
            sets_tried=len(state.shim_sets),
            step=state.step,
            notes=tuple(state.notes),
            problem=problem or (state.finished.error if state.finished else None) or "",
        )

    def _status(self, held: bool) -> RunStatus:
        done = self.state.finished
        if done is not None:
            return done.status
        return "running" if held else "cut off"


def _without_parts(state: RunState) -> RunState:
    """The same run without parts: their records are the costly part of a report and change rarely."""
    return RunState(
        started=state.started,
        opened=state.opened,
        answers=state.answers,
        notes=state.notes,
        finished=state.finished,
        cached=state.cached,
        last_at=state.last_at,
    )


class RunFollower:
    """Follows one run. `look` is one step; `follow` repeats it until `stopped` returns True."""

    def __init__(self, path: Path, show: Callable[[RunView], None]) -> None:
        self._path = path
        self._show = show
        self._fold = RunFold(path)
        self._reader = journal.EventReader(path / journal.NAME)
        self._held = lock.is_held(path)
        self._lock_seen = self._shown_at = 0.0
        self._unseen = True
        self._trees_at = self._between = 0.0
        self._problem = ""

    def follow(self, stopped: Callable[[], bool]) -> None:
        """Read until `stopped`. An error becomes the view's `problem`, and reading is tried again."""
        self.look(time.monotonic())
        # events that were read are never freed: a collector that walks them again and again stops every key for 50 ms
        gc.freeze()
        while not stopped():
            time.sleep(PAUSE)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Read new events and show the view; at most a few times a second, however fast events come."""
        self._read()
        if now - self._lock_seen >= _LOCK_PAUSE:
            self._lock_seen = now
            held = lock.is_held(self._path)
            self._unseen |= held != self._held
            self._held = held
        if self._unseen and now - self._shown_at >= _BETWEEN_VIEWS:
            self._unseen, self._shown_at = False, now
            self._show_view(now)

    def _show_view(self, now: float) -> None:
        """The trees are recomputed as often as their cost allows."""
        due = self._fold.state.finished is not None or now - self._trees_at >= self._between
        began = time.thread_time()
        self._show(self._fold.view(held=self._held, problem=self._problem, trees=due))
        if due:
            self._trees_at = now
            self._between = _SHARE * (time.thread_time() - began)
        self._unseen = not due

    def _read(self) -> None:
        problem = ""
        try:
            events = self._reader.read_new()
        except ExportdoctorError as error:
            events = ()
            problem = self._problem_of(error)
        self._fold.take(events)
        self._unseen |= bool(events) or problem != self._problem
        self._problem = problem

    def _problem_of(self, error: ExportdoctorError) -> str:
        """One line; empty for a run that has not written its first event yet."""
        if self._path.is_dir() and not self._reader.path.exists() and self._held:
            return ""
        if not self._path.exists():
            return f"The run's folder is gone: {self._path}. What was read of it stays here until you leave"
        return error.line()

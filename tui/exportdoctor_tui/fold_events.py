"""From events to pictures: the core's fold, plus which parts have changed since the last picture.

Law: the picture after any events is the same whether they came one by one or all at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exportdoctor.core import events as ev
from exportdoctor.core.run_state import RunState
from exportdoctor_tui.view import PartView, RunView, attempt_of, is_plain, part_view

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from exportdoctor.core.outcome import Outcome
    from exportdoctor.store.runs import RunStatus


class Folding:
    """A run being read; `view` costs only what has changed."""

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
                case ev.ProbeFinished(probe=probe, outcome=outcome) if not outcome.passed and is_plain(probe):
                    self._failed[probe.part, probe.fqn] = outcome
                case _:
                    pass

    def view(self, *, held: bool, problem: str = "", trees: bool = True) -> RunView:
        """The picture now; `held`: a process is at work in the folder. Without `trees` the earlier ones stand."""
        state = self.state
        if trees:
            for name in self._stale & state.parts.keys():
                self._parts[name] = part_view(state.parts[name], self._failed)
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
            attempts=tuple(attempt_of(*running) for running in state.running.values()),
            step=state.step,
            notes=tuple(state.notes),
            problem=problem or _error(state.finished),
        )

    def _status(self, held: bool) -> RunStatus:
        done = self.state.finished
        if done is not None:
            return "finished" if done.complete else "cut off"
        return "running" if held else "cut off"


def _without_parts(state: RunState) -> RunState:
    """The same run with no parts: their records are the costly half of a report, and are made when they change."""
    return RunState(
        started=state.started,
        opened=state.opened,
        answers=state.answers,
        notes=state.notes,
        finished=state.finished,
        cached=state.cached,
        last_at=state.last_at,
    )


def _error(finished: ev.RunFinished | None) -> str:
    return (finished.error or "") if finished else ""

"""What goes on, on stderr: a live display on a terminal, plain lines elsewhere, nothing if the user says so."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Protocol, Self, TextIO

from exportdoctor.core import events as ev
from exportdoctor.core.run_state import RunState
from exportdoctor.report.wording import culprit_line, elapsed, finding_count, parameters, plain, progress_counts

_PAUSE = 10.0  # seconds between two lines on how far it is


class Progress(Protocol):
    """Shows events as they come; a context manager that leaves the terminal as it found it."""

    def show(self, event: ev.AnyEvent, state: RunState) -> None:
        """Take notice of `event`; `state` includes it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silence:
    """Shows nothing."""

    def show(self, event: ev.AnyEvent, state: RunState) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Lines(Silence):
    """A line for each thing worth knowing, with the seconds since the start; for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = self._told = time.monotonic()
        self._findings: set[str] = set()

    def show(self, event: ev.AnyEvent, state: RunState) -> None:
        """One line, or none; a finding of which more becomes known has had its line."""
        text = None if is_old(event, self._findings) else news(event, state)
        if text is None and time.monotonic() - self._told >= _PAUSE:
            text = progress_counts(state)
        if text:
            self._say(text)

    def _say(self, text: str) -> None:
        self._told = time.monotonic()
        try:
            print(f"{elapsed(self._told - self._begun):>7}  {plain(text)}", file=self._stream, flush=True)
        except OSError:
            return


def news(event: ev.AnyEvent, state: RunState) -> str | None:
    """What is worth a line of its own."""
    match event:
        case ev.RunStarted():
            return f"run {event.run}"
        case ev.RunResumed():
            return f"going on; {len(state.answers)} answers are known"
        case ev.Stepped() | ev.Noted():
            return event.text
        case ev.TargetOpened(opened=opened):
            return f"built: {parameters(opened.parameters)} on {opened.device}, {opened.dtype}"
        case ev.PartCaptured(captured=captured):
            return f"{captured.part}: {sum(1 for fact in captured.modules if fact.calls)} modules captured"
        case ev.FindingMade(finding=finding):
            return f"{finding.id}  {culprit_line(finding)}"
        case ev.PartFinished():
            here = sum(1 for finding in state.findings.values() if finding.part == event.part)
            return f"{event.part}: {event.verdict}, {finding_count(here)}, {elapsed(event.seconds)}"
        case _:
            return None


def is_old(event: ev.AnyEvent, told: set[str]) -> bool:
    """Whether this is a finding that was told before; `told` is kept up to date."""
    if not isinstance(event, ev.FindingMade):
        return False
    old = event.finding.id in told
    told.add(event.finding.id)
    return old


def progress_for(stream: TextIO, *, quiet: bool) -> Progress:
    """The display that fits `stream`."""
    if quiet:
        return Silence()
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        from exportdoctor.cli.live_display import Live

        return Live(stream)
    return Lines(stream)

"""Progress on stderr: plain lines for logs and pipes, or nothing. `live_display` has the one for terminals."""

from __future__ import annotations

import time
from typing import Self, TextIO

from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import RunState
from exportdoctor.report.wording import duration, event_line, plain, progress_counts, time_left

_PAUSE = 10.0  # seconds between two lines on how far it is


class Progress:
    """Shows nothing, for --quiet; its subclasses show events. A context manager that leaves the terminal as it was."""

    def show(self, event: ev.AnyEvent, state: RunState) -> None:
        """Show `event`; `state` includes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class LineProgress(Progress):
    """A line for each notable event, and one on how far the run is every ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = self._shown = time.monotonic()
        self._findings = SeenFindings()

    def show(self, event: ev.AnyEvent, state: RunState) -> None:
        """One line, or none."""
        text = None if self._findings.contain(event) else event_line(event, state)
        now = time.monotonic()
        if text is None and now - self._shown >= _PAUSE:
            text = " · ".join(filter(None, (progress_counts(state), time_left(state, now - self._begun))))
        if text:
            self._write(text, now)

    def _write(self, text: str, now: float) -> None:
        self._shown = now
        try:
            print(f"{duration(now - self._begun):>7}  {plain(text)}", file=self._stream, flush=True)
        except OSError:
            return


class SeenFindings:
    """Which findings have been shown: when more becomes known of a finding, it is sent again."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def contain(self, event: ev.AnyEvent) -> bool:
        """Whether the event is about a finding that was shown before; remembers it."""
        if not isinstance(event, ev.FindingMade):
            return False
        seen = event.finding.id in self._ids
        self._ids.add(event.finding.id)
        return seen

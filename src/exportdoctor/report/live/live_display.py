"""The live display on a terminal: how far the scan is, the time left, what is being tried, what was found."""

from __future__ import annotations

import time
from typing import Self, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import RunState
from exportdoctor.report.live.progress import Progress, SeenFindings
from exportdoctor.report.wording import (
    duration,
    event_line,
    module_name,
    plain,
    probe_note,
    progress_counts,
    time_left,
)

_SHOWN = 4  # running attempts that get a line each


class LiveDisplay(Progress):
    """Redraws a few lines at the bottom; findings and finished parts stay above them."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._picture = _Picture()
        self._findings = SeenFindings()
        self._live = Live(self._picture, console=self._console, refresh_per_second=6, transient=True)

    def show(self, event: ev.AnyEvent, state: RunState) -> None:
        """Update the state that is drawn; redrawing is done by the clock, not by events."""
        self._picture.state = state
        if self._findings.contain(event):
            return
        if isinstance(event, ev.FindingMade | ev.PartFinished | ev.NoteAdded):
            self._console.print(Text(plain(event_line(event, state) or "")))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


class _Picture:
    """A few lines, drawn from the state as it is at that moment."""

    def __init__(self) -> None:
        self.state = RunState()
        self._begun = time.monotonic()
        self._spinner = Spinner("dots")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        elapsed = time.monotonic() - self._begun
        head = " · ".join(filter(None, (progress_counts(self.state), time_left(self.state, elapsed))))
        self._spinner.update(text=Text(" ").join((Text(duration(elapsed), "dim"), Text(head))))
        yield self._spinner
        # a copy: the main thread changes the state while this one draws
        for probe, _pid, since in list(self.state.running.values())[:_SHOWN]:
            line = Text("  ", no_wrap=True, overflow="ellipsis")
            if since:
                line.append(f"{duration(time.time() - since):>7}  ", "dim")
            line.append(f"{probe.part.removesuffix(SMALL_MODEL_SUFFIX)}  {plain(module_name(probe.fqn))}", "cyan")
            yield line.append(f"  {plain(probe_note(probe))}", "dim")

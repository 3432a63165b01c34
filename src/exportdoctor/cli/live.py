"""The live display on a terminal: what is being tried, how far it is, what was found, for how long it has run."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live as RichLive
from rich.spinner import Spinner
from rich.text import Text

from exportdoctor.cli.progress import is_old, news
from exportdoctor.core import events as ev
from exportdoctor.core.protocol.scan import SMALL_MODEL
from exportdoctor.core.run_state import RunState
from exportdoctor.report.wording import elapsed, how_asked, module_name, plain, progress_counts

_SHOWN = 4  # attempts in flight that get a line each


class Live:
    """Redraws a few lines at the bottom; findings and finished parts stay above them."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._picture = _Picture()
        self._findings: set[str] = set()
        self._live = RichLive(self._picture, console=self._console, refresh_per_second=6, transient=True)

    def show(self, event: ev.AnyEvent, state: RunState) -> None:
        """Take the event into the picture; the picture is redrawn by the clock, not by events."""
        self._picture.state = state
        if is_old(event, self._findings):
            return
        if isinstance(event, ev.FindingMade | ev.PartFinished | ev.Noted):
            self._console.print(Text(plain(news(event, state) or "")))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class _Picture:
    """A few lines that are drawn from the state as it is at that moment."""

    def __init__(self) -> None:
        self.state = RunState()
        self._begun = time.monotonic()
        self._spinner = Spinner("dots")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = time.monotonic()
        head = Text(" ").join((Text(elapsed(now - self._begun), "dim"), Text(progress_counts(self.state))))
        self._spinner.update(text=head)
        yield self._spinner
        # a copy: the main thread changes the state while this one draws
        for probe, _pid, since in list(self.state.running.values())[:_SHOWN]:
            line = Text("  ", no_wrap=True, overflow="ellipsis")
            if since:
                line.append(f"{elapsed(time.time() - since):>7}  ", "dim")
            line.append(f"{probe.part.removesuffix(SMALL_MODEL)}  {plain(module_name(probe.fqn))}", "cyan")
            yield line.append(f"  {plain(how_asked(probe))}", "dim")

"""The application: what all screens share, and the entry point by which the command line finds it."""

from __future__ import annotations

import gc
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import App, SystemCommand

from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.report.source_lines import Sources
from exportdoctor_tui.actions.background_job import BackgroundJob
from exportdoctor_tui.actions.commands import EXPORTDOCTOR
from exportdoctor_tui.keymap import APP, TABLES, bindings
from exportdoctor_tui.sanitize import line
from exportdoctor_tui.screens.dialogs import Menu, Page, help_text
from exportdoctor_tui.screens.run import RunScreen
from exportdoctor_tui.screens.run_list import RunListScreen
from exportdoctor_tui.themes import DARK, LIGHT, THEMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.binding import BindingType
    from textual.screen import Screen

    from exportdoctor_tui.actions.commands import Argv

_PAGE, _PAGE_FRAME = 90, 7  # cells: width of `#leaf` in the style sheet, and its border, padding and scroll bar
_LEAVING = ("Stay", "Quit and let it run", "Stop it and quit; its results are saved")


class DoctorApp(App[int]):
    """`run`: the folder to open first, None = the list of runs. `scan`: a command that makes it, started at once."""

    CSS_PATH = "app.tcss"
    TITLE = "exportdoctor"
    BINDINGS: ClassVar[list[BindingType]] = bindings(APP)
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (120, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (15, "-short"), (32, "-tall")]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        run: Path | None = None,
        *,
        scan: Argv = (),
        clock: Callable[[], float] = time.time,
        sources: Sources | None = None,
        root: Path | None = None,
    ) -> None:
        super().__init__()
        self._first = run
        self._scan = scan
        self.root = root
        self.clock = clock
        self.sources = sources or Sources()
        self.job: BackgroundJob | None = None
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = DARK.name

    def on_mount(self) -> None:
        """Open the first run, or else the list of runs."""
        # the follower computes in a thread: let the keys have the interpreter after 1 ms instead of 5
        sys.setswitchinterval(0.001)
        # a collection walks all events of a run and stops every key for 30 ms: run it rarely, little of it is cyclic
        gc.set_threshold(2000, 20, 100)
        if self._first is None:
            self.push_screen(RunListScreen(root=self.root))
            return
        if self._scan:
            self.start_job("This scan", self._scan)
        self.push_screen(RunScreen(self._first))

    def open_run(self, path: Path) -> None:
        """Show a run, in place of the one that is shown."""
        if isinstance(self.screen, RunScreen):
            self.switch_screen(RunScreen(path))
        else:
            self.push_screen(RunScreen(path))

    def show_runs(self) -> None:
        """Go back to the list of runs."""
        if any(isinstance(screen, RunListScreen) for screen in self.screen_stack):
            self.pop_screen()
        else:
            self.switch_screen(RunListScreen(root=self.root))

    def start_job(self, title: str, argv: Argv, *, shows: bool = False, done: str = "") -> bool:
        """Start a process; False where one is running or it cannot be started, which the user is notified of.

        `shows`: its output is its result; `done`: what there is once it has ended well.
        """
        if self.job is not None and self.job.state == "running":
            self.notify("Another command is running; press x to stop it", severity="warning", markup=False)
            return False
        if self.job is not None:
            self.job.forget()
        width = max(40, min(_PAGE, self.size.width * 95 // 100) - _PAGE_FRAME)
        try:
            self.job = BackgroundJob(title, argv, begun=self.clock(), shows=shows, done=done, width=width)
        except OSError as error:
            self.notify(f"Cannot start it: {error}", severity="error", markup=False)
            return False
        return True

    def action_help(self) -> None:
        tables = getattr(self.screen, "HELP_TABLES", None)
        if tables:
            self.push_screen(Page("Help", help_text(tables)))

    def action_switch_theme(self) -> None:
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def action_save_svg(self) -> None:
        name = time.strftime("exportdoctor-%Y%m%d-%H%M%S.svg", time.localtime(self.clock()))
        try:
            path = self.save_screenshot(name, path=str(Path.cwd()))
        except OSError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.notify(line(path), title="Saved", markup=False)

    def action_leave(self) -> None:
        """Quit; ask first what to do with a running job."""
        if self.job is None or self.job.state != "running":
            self._leave()
            return
        self.push_screen(Menu(f"Still running: {self.job.title}", _LEAVING), self._leave_as_chosen)

    def _leave_as_chosen(self, number: int | None) -> None:
        if number not in (1, 2):
            return
        if number == 2 and self.job is not None:
            self.job.cancel()
            self.job.wait(10)
        self._leave()

    def on_unmount(self) -> None:
        """Delete the output of a job that has ended."""
        if self.job is not None:
            self.job.forget()

    def _leave(self) -> None:
        shown = next((screen for screen in self.screen_stack if isinstance(screen, RunScreen)), None)
        finished = shown.view.finished if shown and self._scan else None
        self.exit(finished.exit_code if finished else ExitCode.EXPORTS)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Every key's action, every command that can be started, and every finding, by name."""
        for table in getattr(screen, "HELP_TABLES", ()):
            for key in TABLES[table]:
                idle = self.job is None or self.job.state != "running"
                if (key.action == "cancel" and idle) or key.action == "back":
                    continue
                if "palette" not in key.action and table in ("Runs", "Run", "Everywhere"):
                    yield SystemCommand(key.what, f"key {key.shown}", partial(self._act, screen, key.action))
        if isinstance(screen, RunScreen):
            yield from screen.palette()

    async def _act(self, screen: Screen[object], action: str) -> None:
        """Run a key's action, which is the screen's own or the app's."""
        own = hasattr(screen, f"action_{action.partition('(')[0]}")
        await self.run_action(action, default_namespace=screen if own else self)


def _serve(run: Path | None, port: int) -> int:
    try:
        from exportdoctor_tui.web.guarded_server import serve
    except ImportError as error:
        raise UsageError("textual-serve is not installed", hint="pip install 'exportdoctor[tui]'") from error
    title = f"{run.name} · exportdoctor" if run else "exportdoctor"
    serve((*EXPORTDOCTOR, "tui", *((str(run),) if run else ())), port=port, title=title)
    return ExitCode.EXPORTS


def _check_terminal() -> None:
    """Raise UsageError where there is nothing to draw on: keys would never come, and escape codes fill a file."""
    if "TEXTUAL_DRIVER" in os.environ:  # the browser's
        return
    streams = (sys.__stdin__, sys.__stderr__)
    if os.environ.get("TERM") == "dumb" or not all(stream is not None and stream.isatty() for stream in streams):
        raise UsageError(
            "the terminal interface needs a terminal", hint="exportdoctor report shows a run as text, md or html"
        )


def main(run: Path | None = None, *, scan: Argv = (), web: bool = False, port: int = 8000) -> int:
    """Show the run in folder `run` (None = the list of runs) until the user leaves; returns an exit code.

    `scan` is a command line that makes that run, started by the interface. `web` serves the interface to browsers on
    this machine until interrupted. Raises UsageError without a terminal, and where the port cannot be used.
    """
    if web:
        return _serve(run, port)
    _check_terminal()
    code = DoctorApp(run, scan=scan).run()
    return ExitCode.INTERNAL if code is None else code

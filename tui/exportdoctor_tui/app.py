"""The application: what every screen shares, and the entry point by which the core finds it."""

from __future__ import annotations

import gc
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import App, SystemCommand

from exportdoctor.core.errors import ExitCode
from exportdoctor.store.places import data_home
from exportdoctor_tui.jobs import Job
from exportdoctor_tui.keymap import APP, TABLES, bindings
from exportdoctor_tui.sanitize import line
from exportdoctor_tui.screens.choose import Choose
from exportdoctor_tui.screens.page import Page, help_text
from exportdoctor_tui.screens.run import RunScreen
from exportdoctor_tui.screens.runs import RunsScreen
from exportdoctor_tui.sources import Sources
from exportdoctor_tui.themes import DARK, LIGHT, THEMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from textual.binding import BindingType
    from textual.screen import Screen

    from exportdoctor_tui.commands import Command

_PAGE, _PAGE_FRAME = 90, 7  # cells: as wide as `#leaf` in the style sheet, and its border, padding and scroll bar
_LEAVING = ("Stop it, and quit; what it found is saved", "Let it run, and quit", "Stay")


class DoctorApp(App[int]):
    """`run` is the folder to open first, None = the list. `scan` is a command that makes it, started at once."""

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
        scan: Command = (),
        clock: Callable[[], float] = time.time,
        sources: Sources | None = None,
        root: Path | None = None,
    ) -> None:
        super().__init__()
        self._first = run
        self._scan = scan
        self._root = root
        self.clock = clock
        self.sources = sources or Sources()
        self.job: Job | None = None
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = DARK.name

    def on_mount(self) -> None:
        """The run that was asked for, else the list."""
        # the follower computes in a thread: let the keys have the interpreter after 1 ms instead of 5
        sys.setswitchinterval(0.001)
        # walking everything that a run has told stops every key for 30 ms: seldom is enough, for little of it is cyclic
        gc.set_threshold(2000, 20, 100)
        if self._first is None:
            self.push_screen(RunsScreen(root=self._root))
            return
        if self._scan:
            self.start_job("This scan", self._scan)
        self.push_screen(RunScreen(self._first))

    def open_run(self, path: Path) -> None:
        """Show another run in place of the one that is shown."""
        if isinstance(self.screen, RunScreen):
            self.switch_screen(RunScreen(path))
        else:
            self.push_screen(RunScreen(path))

    def show_runs(self) -> None:
        """Back to the list."""
        if any(isinstance(screen, RunsScreen) for screen in self.screen_stack):
            self.pop_screen()
        else:
            self.switch_screen(RunsScreen(root=self._root))

    @property
    def root(self) -> Path | None:
        """Where runs are, if not in the usual place."""
        return self._root

    def start_job(self, title: str, command: Command, *, shows: bool = False) -> bool:
        """Start a command; one at a time. `shows`: its output is its result."""
        if self.job is not None and self.job.view().state == "running":
            self.notify("One thing at a time: x cancels what is running", severity="warning", markup=False)
            return False
        if self.job is not None:
            self.job.forget()
        try:
            self.job = Job(title, command, begun=self.clock(), shows=shows, width=self._page_width())
        except OSError as error:
            self.notify(f"It cannot be started: {error}", severity="error", markup=False)
            return False
        return True

    def _page_width(self) -> int:
        """How many cells a page over the screen has for text."""
        return max(40, min(_PAGE, self.size.width * 95 // 100) - _PAGE_FRAME)

    def cancel_job(self) -> bool:
        """Ask the running job to stop; False where none runs."""
        if self.job is None or self.job.view().state != "running":
            return False
        self.job.cancel()
        return True

    def action_help(self) -> None:
        """The keys of the screen that is shown."""
        tables = getattr(self.screen, "HELP_TABLES", None)
        if tables:
            self.push_screen(Page("Help", help_text(tables)))

    def action_switch_theme(self) -> None:
        """Light or dark."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def action_save_svg(self) -> None:
        """The screen as it is."""
        folder = data_home() / "screens"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            name = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.clock())) + ".svg"
            path = self.save_screenshot(name, path=str(folder))
        except OSError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.notify(line(path), title="Saved", markup=False)

    def action_leave(self) -> None:
        """Quit; a job that runs is asked about first."""
        if self.job is None or self.job.view().state != "running":
            self._leave()
            return
        self.push_screen(Choose(f"Still running: {self.job.title}", _LEAVING), self._left)

    def _left(self, number: int | None) -> None:
        if number not in (0, 1):
            return
        if number == 0 and self.job is not None:
            self.job.cancel()
            self.job.wait(10)
        self._leave()

    def on_unmount(self) -> None:
        """Whatever ends the interface, no file of a job that is over stays."""
        if self.job is not None:
            self.job.forget()

    def _leave(self) -> None:
        shown = next((screen for screen in self.screen_stack if isinstance(screen, RunScreen)), None)
        finished = shown.view.finished if shown and self._scan else None
        self.exit(finished.exit_code if finished else ExitCode.EXPORTS)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Everything that a key does, everything that can be done, and every finding, by name."""
        for table in getattr(screen, "HELP_TABLES", ()):
            for key in TABLES[table]:
                if "palette" not in key.action and table in ("Runs", "Run", "Everywhere"):
                    yield SystemCommand(key.what, f"key {key.shown}", partial(self._act, screen, key.action))
        if isinstance(screen, RunScreen):
            yield from screen.commands()

    async def _act(self, screen: Screen[object], action: str) -> None:
        """Run a key's action, which is the screen's own or the app's."""
        own = hasattr(screen, f"action_{action.partition('(')[0]}")
        await self.run_action(action, default_namespace=screen if own else self)


def main(run: Path | None = None, *, scan: Command = (), web: bool = False, port: int = 8000) -> int:
    """Show the run in folder `run` (None = the list of runs) until the user leaves; returns an exit code.

    `scan` is a command line that writes that run, started by the interface and stopped with it if the user wants.
    `web` serves the same interface on the loopback address instead.
    """
    if web:
        from exportdoctor_tui.serve import serve

        return serve(run, port=port)
    code = DoctorApp(run, scan=scan).run()
    return ExitCode.INTERNAL if code is None else code

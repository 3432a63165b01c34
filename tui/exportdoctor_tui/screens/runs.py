"""The first screen: the runs that there are, the newest first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from exportdoctor.store.runs import RunSummary, list_runs
from exportdoctor_tui.keymap import RUN_LIST, RUNS, bindings
from exportdoctor_tui.pages.run_list import HEADING, cells, row, widths_of
from exportdoctor_tui.sanitize import TOO_SMALL, line
from exportdoctor_tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

_FIRST_COMMAND = "exportdoctor scan Qwen2.5-VL-3B"
_NONE = Content.assemble(
    ("There is no run yet.\n\n", "bold"),
    "Make one in another terminal:\n\n    ", (_FIRST_COMMAND, "bold $text-accent"),
    ("\n\nc copies the command · it appears here by itself", "$foreground 60%"),
)  # fmt: skip


class RunList(OptionList):
    """The list, with its key in the footer."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(RUN_LIST)


class RunsScreen(Screen[None]):
    """A table; enter opens a run."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(RUNS)
    HELP_TABLES = ("List of runs", "Runs", "Everywhere")

    class Listed(Message):
        """The runs on disk."""

        def __init__(self, runs: tuple[RunSummary, ...]) -> None:
            super().__init__()
            self.runs = runs

    def __init__(self, *, root: Path | None = None) -> None:
        super().__init__()
        self._root = root
        self._runs: tuple[RunSummary, ...] = ()
        self.listed = False

    def compose(self) -> ComposeResult:
        """Title, table, keys."""
        yield Static(Content.assemble(("exportdoctor", "bold $text-accent"), ("  runs", "$foreground 60%")), id="head")
        yield Static(Content(""), id="heading", markup=False)
        yield RunList(id="runs", markup=False)
        yield Static(_NONE, id="none", markup=False)
        yield Static(TOO_SMALL, id="small", markup=False)
        yield KeyBar(("List of runs", "Runs", "Everywhere"))

    def on_mount(self) -> None:
        """Look for runs, now and then."""
        self.query_one("#none").display = False
        self.set_interval(3.0, self._look)

    def on_screen_resume(self) -> None:
        """A run may have been made meanwhile."""
        self._look()

    @work(thread=True, exclusive=True, group="runs")
    def _look(self) -> None:
        runs = list_runs(self._root)
        if not get_current_worker().is_cancelled:
            self.post_message(self.Listed(runs))

    def on_runs_screen_listed(self, message: RunsScreen.Listed) -> None:
        """Draw the list; the cursor stays on its run."""
        table = self.query_one(OptionList)
        self.query_one("#none").display = not message.runs
        table.display = self.query_one("#heading").display = bool(message.runs)
        self.listed = True
        if message.runs == self._runs:
            return
        chosen = self._chosen()
        self._runs = message.runs
        widths = widths_of(self._runs)
        self.query_one("#heading", Static).update(row(HEADING, widths))
        table.set_options([Option(row(cells(run), widths)) for run in self._runs])
        names = [run.run for run in self._runs]
        table.highlighted = names.index(chosen.run) if chosen and chosen.run in names else 0
        table.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter or a click on a row."""
        event.stop()
        self.action_open_run()

    def action_open_run(self) -> None:
        """Open the run under the cursor; one that cannot be read says why."""
        run = self._chosen()
        if run is None:
            return
        if run.status == "unreadable":
            self.notify(line(run.problem), title=run.run, severity="error", markup=False)
            return
        from exportdoctor_tui.screens.run import RunScreen

        self.app.push_screen(RunScreen(Path(run.path)))

    def action_refresh(self) -> None:
        """Look again."""
        self._look()

    def action_copy_command(self) -> None:
        """For the other terminal."""
        self.app.copy_to_clipboard(_FIRST_COMMAND)
        self.notify("Copied", markup=False)

    def _chosen(self) -> RunSummary | None:
        number = self.query_one(OptionList).highlighted
        return self._runs[number] if number is not None and number < len(self._runs) else None

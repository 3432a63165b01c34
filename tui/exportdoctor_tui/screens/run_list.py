"""The first screen: a table of all runs, the newest first."""

from __future__ import annotations

import time
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.report import wording
from exportdoctor.store.runs import RunSummary, delete_run, list_runs
from exportdoctor_tui.app_services import services_of
from exportdoctor_tui.keymap import RUN_LIST, RUNS, bindings
from exportdoctor_tui.sanitize import TOO_SMALL, line
from exportdoctor_tui.screens.dialogs import Menu
from exportdoctor_tui.widgets.bars import KeyBar

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

_FIRST_COMMAND = "exportdoctor scan Qwen2.5-VL-3B"
_NONE = Content.assemble(
    ("There are no runs yet.\n\n", "bold"),
    "Start one in another terminal:\n\n    ", (_FIRST_COMMAND, "bold $text-accent"),
    ("\n\nc copies the command · it appears here by itself", "$foreground 75%"),
)  # fmt: skip
_HEADING = tuple(map(Content, ("when", "target", "state", "found", "time", "parts", "run")))
_WIDEST = (11, 28, 10, 5, 12, 44, 60)
_RIGHT = (3, 4)  # columns of numbers
_TABLES = ("List of runs", "Runs", "Everywhere")
_COLOURS = {
    "finished": "$text-success",
    "running": "$text-primary",
    "error": "$text-error",
    "cut off": "$text-warning",
    "unreadable": "$text-error",
}


class RunList(OptionList):
    """The rows; the table of keys gives `enter` its word in the footer."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(RUN_LIST)


class RunListScreen(Screen[None]):
    """Enter opens the run under the cursor. `root`: where runs are, None = the usual folder."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(RUNS)
    HELP_TABLES = _TABLES

    class Listed(Message):
        """The runs on disk were listed."""

        def __init__(self, runs: tuple[RunSummary, ...]) -> None:
            super().__init__()
            self.runs = runs

    def __init__(self, *, root: Path | None = None) -> None:
        super().__init__()
        self._root = root
        self._runs: tuple[RunSummary, ...] = ()
        self._shown: tuple[RunSummary, ...] = ()
        self.listed = False

    def compose(self) -> ComposeResult:
        yield Static(Content.assemble(("exportdoctor", "bold $text-accent"), ("  runs", "$foreground 75%")), id="head")
        yield Static(Content(""), id="heading", markup=False)
        yield RunList(id="runs", markup=False)
        yield Static(_NONE, id="none", markup=False)
        yield Static(TOO_SMALL, id="small", markup=False)
        yield Input(placeholder="target, state, part or run", id="filter")
        yield KeyBar(_TABLES)

    def on_mount(self) -> None:
        """Look for new runs every three seconds."""
        self.query_one("#none").display = self.query_one("#filter").display = False
        self.set_interval(3.0, self._look)

    def on_screen_resume(self) -> None:
        """Look at once: a run may have been made while another screen was shown."""
        self._look()

    @work(thread=True, exclusive=True, group="runs")
    def _look(self) -> None:
        runs = list_runs(self._root)
        if not get_current_worker().is_cancelled:
            self.post_message(self.Listed(runs))

    def on_run_list_screen_listed(self, message: RunListScreen.Listed) -> None:
        """Draw the list; the cursor stays on its run."""
        table = self.query_one(OptionList)
        self.query_one("#none").display = not message.runs
        table.display = self.query_one("#heading").display = bool(message.runs)
        self.listed = True
        if message.runs == self._runs:
            return
        self._runs = message.runs
        self._draw()
        if not self.query_one(Input).has_focus:
            table.focus()

    def _draw(self) -> None:
        """Draw the runs that the filter leaves; the cursor stays on its run."""
        current, table = self._current(), self.query_one(OptionList)
        words = self.query_one(Input).value.lower().split()
        self._shown = tuple(run for run in self._runs if all(word in _words(run) for word in words))
        heading, *lines = _table(self._shown)
        self.query_one("#heading", Static).update(heading)
        nothing = [Option(Content(f"No run matches {' '.join(words)!r}"), disabled=True)]
        table.set_options(list(map(Option, lines)) or nothing)
        names = [run.run for run in self._shown]
        table.highlighted = names.index(current.run) if current and current.run in names else 0 if names else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_open_run()

    def action_open_run(self) -> None:
        """Open the run under the cursor; of an unreadable one, show why."""
        run = self._current()
        if run is None:
            return
        if run.status == "unreadable":
            self.notify(line(run.problem), title=run.run, severity="error", markup=False)
            return
        services_of(self).open_run(Path(run.path))

    def action_refresh(self) -> None:
        self._look()

    def on_descendant_focus(self) -> None:
        """The footer names the keys of what has the focus."""
        self.query_one(KeyBar).show(("Filter and search",) if isinstance(self.focused, Input) else _TABLES)

    def action_filter(self) -> None:
        entry = self.query_one(Input)
        entry.display = True
        entry.focus()

    def action_back(self) -> None:
        """Drop the filter."""
        entry = self.query_one(Input)
        entry.value = ""
        entry.display = False
        self.query_one(OptionList).focus()

    def on_input_changed(self) -> None:
        self._draw()

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).focus()

    def action_delete(self) -> None:
        """Delete the run under the cursor, once the user has said so."""
        run = self._current()
        if run is not None:
            choices = ("Keep it", "Delete it, with its logs and scripts")
            self.app.push_screen(
                Menu(line(run.run), choices), lambda number: self._delete(run) if number == 1 else None
            )

    def _delete(self, run: RunSummary) -> None:
        try:
            delete_run(run.path, self._root)
        except ExportdoctorError as error:
            self.notify(line(str(error)), severity="error", markup=False)
        self._look()

    def action_copy_command(self) -> None:
        self.app.copy_to_clipboard(_FIRST_COMMAND)
        self.notify("Copied", markup=False)

    def _current(self) -> RunSummary | None:
        number = self.query_one(OptionList).highlighted
        return self._shown[number] if number is not None and number < len(self._shown) else None


def _table(runs: tuple[RunSummary, ...]) -> list[Content]:
    """The heading and a line for each run, in columns as wide as their cells, up to _WIDEST."""
    rows = [_HEADING, *map(_cells, runs)]
    widths = [min(most, max(row[column].cell_length for row in rows)) for column, most in enumerate(_WIDEST)]
    return [
        Content("  ").join(_fit(*cell, column in _RIGHT) for column, cell in enumerate(zip(row, widths)))
        for row in rows
    ]


def _fit(cell: Content, width: int, right: bool) -> Content:
    cell = cell.truncate(width, ellipsis=True)
    room = width - cell.cell_length
    return cell.pad_left(room) if right else cell.pad_right(room)


def _words(run: RunSummary) -> str:
    """What the filter looks at."""
    return " ".join((run.run, run.ref, run.status, *run.parts, *run.parts.values(), *run.begun)).lower()


def _cells(run: RunSummary) -> tuple[Content, ...]:
    """One run, a cell for each of _HEADING."""
    problem = run.problem and Content.styled(line(run.problem), "$text-error")
    return (
        Content.styled(time.strftime("%m-%d %H:%M", time.localtime(run.at)), "$foreground 75%"),
        Content.styled(line(run.ref) or "?", "bold"),
        Content.styled(run.status, _COLOURS[run.status]),
        Content(str(run.findings) if run.findings else ""),
        Content.styled(wording.duration(run.seconds) if run.seconds else "", "$foreground 75%"),
        problem or Content("  ").join((*starmap(_verdict, run.parts.items()), *map(_quiet_part, run.begun))),
        Content.styled(run.run, "$foreground 75%"),
    )


def _quiet_part(part: str) -> Content:
    return Content.styled(f"{wording.SYMBOLS['not_asked']} {line(part)}", "$foreground 75%")


def _verdict(part: str, verdict: str) -> Content:
    colour = {"passes": "$text-success", "cured": "$text-warning"}.get(verdict, "$text-error")
    return Content.styled(f"{wording.SYMBOLS[wording.VERDICT_STATUS[verdict]]} {line(part)}", colour)

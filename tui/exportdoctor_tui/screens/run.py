"""A run: the tree of submodules and what is known of the selected one, while it runs and afterwards."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import SystemCommand
from textual.containers import Container
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from exportdoctor.report.wording import culprit_line
from exportdoctor_tui.actions.commands import CommandLine, available_commands
from exportdoctor_tui.app_services import services_of
from exportdoctor_tui.keymap import RUN, bindings
from exportdoctor_tui.pages import run_status
from exportdoctor_tui.sanitize import TOO_SMALL, line
from exportdoctor_tui.screens.dialogs import Menu
from exportdoctor_tui.screens.run_commands import RunCommands
from exportdoctor_tui.state import navigation
from exportdoctor_tui.state.navigation import Position
from exportdoctor_tui.state.run_follower import RunFollower
from exportdoctor_tui.state.run_view import PartView, RunView, finding_for
from exportdoctor_tui.state.selection import TITLES, Selection
from exportdoctor_tui.widgets.bars import KeyBar, Tab, TabBar
from exportdoctor_tui.widgets.finding_pane import FindingPane
from exportdoctor_tui.widgets.module_tree import ModuleTree
from exportdoctor_tui.widgets.stack_pane import Frames
from exportdoctor_tui.widgets.texts import TextBlock, TextPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.timer import Timer

    from exportdoctor_tui.state.outline import Line


_FILTER = "name, class, verdict or finding"
_REST = 0.04  # seconds without a key before the pane follows the cursor


class RunScreen(Screen[None]):
    """Draws two values: `view`, the run as it was last read, and `position`, where the user is in it.

    Every key makes a new position.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(RUN)
    HELP_TABLES = ("Run", "Tree of submodules", "Page", "Stack", "Filter and search", "Everywhere")
    AUTO_FOCUS = "#tree"

    class Changed(Message):
        """The follower has read more of the run."""

        def __init__(self, view: RunView) -> None:
            super().__init__()
            self.view = view

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.view = RunView(path=str(path), problem="")
        self.position = Position()
        self._commands = RunCommands(self)
        self._read = False
        # until the user goes somewhere, the cursor goes to the first failure as soon as there is one
        self._touched = False
        self._lines_key: tuple[object, ...] = ()
        self._lines: tuple[Line, ...] = ()
        self._later: Timer | None = None
        self._searched: TextPage | None = None

    def compose(self) -> ComposeResult:
        yield TextBlock(id="head")
        yield TextBlock(id="status")
        yield TabBar(id="parts")
        with Container(id="body"):
            yield ModuleTree(id="tree")
            yield FindingPane(id="finding")
        yield Input(placeholder=_FILTER, id="filter")
        yield TextBlock(id="job")
        yield Static(TOO_SMALL, id="small", markup=False)
        yield KeyBar(("Tree of submodules", "Run", "Everywhere"))

    def on_mount(self) -> None:
        """Start to follow the run."""
        self.query_one("#filter").display = False
        self.query_one("#job").display = False
        self.query_one(FindingPane).add_class("absent")
        self._follow()
        self.set_interval(0.5, self._tick)

    @work(thread=True, group="follow")
    def _follow(self) -> None:
        worker = get_current_worker()
        # the function runs in this thread, so it may only post a message
        RunFollower(self.path, self._send).follow(lambda: worker.is_cancelled)

    def _send(self, view: RunView) -> None:
        self.post_message(self.Changed(view))

    def on_run_screen_changed(self, message: RunScreen.Changed) -> None:
        """Draw the run as it is now."""
        self.view = message.view
        if not self._touched:
            self.position = navigation.start_position(self.view, self.position)
        self._read = True
        self.draw()

    @property
    def selection(self) -> Selection | None:
        """The row under the cursor, with what is known of it."""
        part = navigation.current_part(self.view, self.position)
        line = self.query_one(ModuleTree).line
        if part is None or line is None:
            return None
        return Selection(
            view=self.view,
            part=part,
            row=line.row,
            finding=finding_for(self.view, part, line.row),
            sources=services_of(self).sources,
            torch_frames=self.position.torch_frames,
        )

    def commands(self) -> tuple[CommandLine, ...]:
        """What can be started now."""
        return available_commands(self.view, self.selection) if self._read else ()

    def palette(self) -> Iterator[SystemCommand]:
        """What can be started, and every finding, for the command palette."""
        for command in self.commands():
            yield SystemCommand(line(command.title), "Action", partial(self.start, command))
        for finding in self.view.findings.values():
            title = line(f"{finding.id}  {culprit_line(finding)}")
            yield SystemCommand(title, "Go to this finding", partial(self.go_to, finding.id))

    def start(self, command: CommandLine) -> None:
        """Start a command for the current selection."""
        self._commands.start(command, self.view, self.selection)

    # Drawing

    def on_descendant_focus(self) -> None:
        """The footer names the keys of what has the focus."""
        match self.focused:
            case Input():
                tables: tuple[str, ...] = ("Filter and search",)
            case Frames():
                tables = ("Stack", "Run", "Everywhere")
            case TextPage():
                tables = ("Page", "Run", "Everywhere")
            case _:
                tables = ("Tree of submodules", "Run", "Everywhere")
        self.query_one(KeyBar).show(tables)

    @property
    def is_settled(self) -> bool:
        """Whether everything is drawn that was asked for so far."""
        return self._read and self._later is None

    def draw(self, *, at_once: bool = True) -> None:
        """Draw everything from `view` and `position`; the finding a moment later if not `at_once`."""
        part = navigation.current_part(self.view, self.position)
        self.query_one("#head", TextBlock).show(run_status.head(self.view))
        tree = self.query_one(ModuleTree)
        tree.show(part, self._current_lines(part), self.position.cursor)
        tree.loading = not self._read
        self._draw_status()
        self._draw_parts()
        self._draw_finding(at_once=at_once)

    def _current_lines(self, part: PartView | None) -> tuple[Line, ...]:
        """The tree's lines; the same object while part, expansion and filter stay."""
        key = (part, self.position.expansion, self.position.words)
        if key != self._lines_key:
            self._lines_key, self._lines = key, navigation.current_lines(self.view, self.position)
        return self._lines

    def _draw_status(self) -> None:
        now = services_of(self).clock()
        width = max(1, self.size.width - 2)
        status = run_status.status(self.view, now, width) if self._read else Content("reading")
        self.query_one("#status", TextBlock).show(status)

    def _draw_parts(self) -> None:
        tabs = []
        for part in self.view.parts:
            count = sum(1 for finding in self.view.findings.values() if finding.part == part.record.name)
            tabs.append(Tab(part.record.name, *run_status.part_title(part, count)))
        self.query_one("#parts", TabBar).show(tuple(tabs), self.position.part)

    def _draw_finding(self, *, at_once: bool = True) -> None:
        """What is known of the selection; not `at_once` while the cursor may move on with the next key."""
        if self._later is not None:
            self._later.stop()
            self._later = None
        if at_once:
            self.query_one(FindingPane).show(self.selection, self.position.tab, said=self._empty_text())
        else:
            self._later = self.set_timer(_REST, self._draw_finding)

    def _empty_text(self) -> str:
        """What stands beside a tree without lines."""
        if self.position.words:
            return f"No submodule matches {' '.join(self.position.words)!r}.\n\nesc clears the filter."
        if self.view.status == "running" and not self.view.parts:
            return run_status.first_step(self.view)
        return ""

    def _tick(self) -> None:
        if self.view.status == "running" and self._read:
            self._draw_status()
        self._commands.draw()

    # Where the user is

    def move_to(self, position: Position) -> None:
        """Go to another position."""
        self._touched = True
        self.position = position
        entry = self.query_one("#filter", Input)
        if not position.words and entry.value.strip():  # a move to a failure drops the filter
            with entry.prevent(Input.Changed):
                self._drop_filter(focus=entry.has_focus)
        self.draw(at_once=False)

    def go_to(self, finding: str) -> None:
        """Go to the row of a finding."""
        self.move_to(navigation.finding_position(self.view, self.position, finding))

    def action_failure(self, step: int) -> None:
        if not any(path.fails for part in self.view.parts for path in part.row_paths):
            self.notify("No submodule fails" + (" so far" if self.view.status == "running" else ""), markup=False)
            return
        self.move_to(navigation.next_failure(self.view, self.position, step=step))

    def action_findings(self) -> None:
        """Let the user choose a finding, and go to it."""
        findings = tuple(self.view.findings.values())
        if not findings:
            self.notify("No findings" + (" so far" if self.view.status == "running" else ""), markup=False)
            return
        titles = tuple(run_status.finding_title(finding, self.view) for finding in findings)
        self.app.push_screen(
            Menu("Findings", titles), lambda number: self.go_to(findings[number].id) if number is not None else None
        )

    def action_part(self, step: int) -> None:
        self.move_to(navigation.adjacent_part(self.view, self.position, step=step))

    def action_open_all(self) -> None:
        self.move_to(navigation.expand_all(self.view, self.position))

    def action_open_failing(self) -> None:
        self.move_to(navigation.expand_failing(self.position))

    def action_tab(self, tab: str) -> None:
        if self.selection is not None and tab not in self.selection.tabs():
            self.notify(f"{TITLES[tab]}: nothing for this submodule", markup=False)
            return
        self.position = replace(self.position, tab=tab)
        self._draw_finding()

    def action_torch_frames(self) -> None:
        self.position = replace(self.position, torch_frames=not self.position.torch_frames, tab="stack")
        self._draw_finding()

    def action_zoom(self) -> None:
        self.set_class(not self.has_class("zoomed"), "zoomed")

    def action_filter(self) -> None:
        """Filter the tree, or search the page that has the focus."""
        entry = self.query_one("#filter", Input)
        self._searched = self.focused if isinstance(self.focused, TextPage) else None
        entry.placeholder = _FILTER if self._searched is None else "words on this page; enter: next"
        entry.display = True
        entry.focus()

    def action_back(self) -> None:
        """Drop the filter, or unzoom, or go back to the tree."""
        entry, tree = self.query_one("#filter", Input), self.query_one(ModuleTree)
        steps: tuple[tuple[bool, Callable[[], object]], ...] = (
            (bool(entry.display), self._drop_filter),
            (self.has_class("zoomed"), self.action_zoom),
            (not tree.has_focus, tree.focus),
            (True, lambda: self.notify("backspace goes to the list of runs", markup=False)),
        )
        next(back for applies, back in steps if applies)()

    def action_runs(self) -> None:
        services_of(self).show_runs()

    def _drop_filter(self, *, focus: bool = True) -> None:
        entry = self.query_one("#filter", Input)
        page, self._searched = self._searched, None
        if page is not None:
            page.find("")
        with entry.prevent(*((Input.Changed,) if page is not None else ())):
            entry.value = ""
        entry.display = False
        if focus:
            (page or self.query_one(ModuleTree)).focus()

    @on(ModuleTree.CursorMoved)
    def _move_cursor(self, message: ModuleTree.CursorMoved) -> None:
        self._touched = True
        self.position = replace(self.position, cursor=message.key)
        self._draw_finding(at_once=False)

    @on(ModuleTree.ActionRequested)
    def _act_on_line(self, message: ModuleTree.ActionRequested) -> None:
        line = message.line
        match message.action:
            case "toggle":
                self.move_to(navigation.toggle(self.position, line))
            case "open":
                self.move_to(navigation.open_or_enter(self.view, self.position, line))
            case "close":
                self.move_to(navigation.close_or_leave(self.view, self.position, line))
            case "unfold" if len(line.row.fqns) == 1:
                self.notify("This line is one submodule", markup=False)
            case "unfold":
                self.move_to(navigation.toggle_members(self.position, line))
            case "read":
                self.query_one(FindingPane).read()

    @on(TabBar.Chosen)
    def _choose_tab(self, message: TabBar.Chosen) -> None:
        if message.bar.id == "parts":
            self.move_to(navigation.start_position(self.view, replace(self.position, part=message.tab)))
        else:
            self.action_tab(message.tab)

    @on(Input.Changed, "#filter")
    def _filter(self, message: Input.Changed) -> None:
        if self._searched is not None:
            self._searched.find(message.value)
            return
        self.move_to(replace(self.position, words=tuple(message.value.lower().split())))

    @on(Input.Submitted, "#filter")
    def _keep_filter(self, message: Input.Submitted) -> None:
        if self._searched is not None:
            if not self._searched.find(message.value, further=True):
                self.notify(f"{line(message.value)!r} is not on this page", markup=False)
            return
        self.query_one(ModuleTree).focus()

    # What the user does

    def action_actions(self) -> None:
        self._commands.choose(self.commands(), self.view, self.selection)

    def action_cancel(self) -> None:
        self._commands.cancel()

    def action_job_log(self) -> None:
        self._commands.show_output()

    def action_copy(self) -> None:
        if self.selection is not None:
            self._commands.copy(self.selection)

    def action_edit(self) -> None:
        pane = self.query_one(FindingPane)
        self._commands.edit(pane.frame, pane.file)

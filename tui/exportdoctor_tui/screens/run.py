"""A run: the tree of submodules and what is known of the selected one, while it runs and afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on, work
from textual.containers import Container
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from exportdoctor_tui import navigation as browsing
from exportdoctor_tui.follower import Follower
from exportdoctor_tui.keymap import RUN, bindings
from exportdoctor_tui.navigation import Browse
from exportdoctor_tui.pages import live
from exportdoctor_tui.pages.selection import Selection
from exportdoctor_tui.sanitize import TOO_SMALL
from exportdoctor_tui.screens.run_navigation import RunSteps
from exportdoctor_tui.view import PartView, RunView, finding_for
from exportdoctor_tui.widgets.finding_pane import FindingPane
from exportdoctor_tui.widgets.key_bar import KeyBar
from exportdoctor_tui.widgets.module_tree import ModuleTree
from exportdoctor_tui.widgets.tab_bar import Tab, TabBar
from exportdoctor_tui.widgets.text import Text

if TYPE_CHECKING:
    from pathlib import Path

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.timer import Timer

    from exportdoctor_tui.app import DoctorApp
    from exportdoctor_tui.outline import Line


_REST = 0.04  # seconds without a key before the pane follows the cursor


class RunScreen(RunSteps):
    """Holds where the user is, as a value; every step makes a new value and draws it."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(RUN)
    HELP_TABLES = ("Run", "Tree of submodules", "Stack", "Everywhere")
    AUTO_FOCUS = "#tree"

    class Changed(Message):
        """The run, as the follower sees it now."""

        def __init__(self, view: RunView) -> None:
            super().__init__()
            self.view = view

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.view = RunView(path=str(path), problem="")
        self.browse = Browse()
        self.read = False
        # until the user goes somewhere, the cursor goes to the first failure as soon as there is one
        self.touched = False
        self._lines_key: tuple[object, ...] = ()
        self._kept: tuple[Line, ...] = ()
        self._later: Timer | None = None
        self._pressed = False

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Text(id="head")
        yield Text(id="status")
        yield TabBar(id="parts")
        with Container(id="body"):
            yield ModuleTree(id="tree")
            yield FindingPane(id="finding")
        yield Input(placeholder="name, class, verdict or finding", id="filter")
        yield Text(id="job")
        yield Static(TOO_SMALL, id="small", markup=False)
        yield KeyBar(("Tree of submodules", "Run", "Everywhere"))

    @property
    def doctor(self) -> DoctorApp:
        """The app, which knows the clock and where sources are."""
        return cast("DoctorApp", self.app)

    def on_mount(self) -> None:
        """Begin to follow."""
        self.query_one("#filter").display = False
        self.query_one("#job").display = False
        self.query_one(FindingPane).display = False
        self._follow()
        self.set_interval(0.5, self._tick)

    @work(thread=True, group="follow")
    def _follow(self) -> None:
        worker = get_current_worker()
        Follower(self.path, self._follow_shows).follow(lambda: worker.is_cancelled)

    def _follow_shows(self, view: RunView) -> None:
        """Called in the follower's thread: a message is all that leaves it."""
        self.post_message(self.Changed(view))

    def on_run_screen_changed(self, message: RunScreen.Changed) -> None:
        """A new picture of the run."""
        self.view = message.view
        if not self.touched:
            self.browse = browsing.begun(self.view, self.browse)
        self.read = True
        self.draw()

    def draw(self) -> None:
        """Everything, from the two values `view` and `browse`."""
        part = browsing.part_shown(self.view, self.browse)
        lines = self._lines(part)
        self.query_one("#head", Text).show(live.head(self.view))
        tree = self.query_one(ModuleTree)
        tree.show(part, lines, self.browse.cursor)
        tree.loading = not self.read
        self._draw_status()
        self._draw_parts()
        self.draw_finding(at_once=not self._pressed)

    def _lines(self, part: PartView | None) -> tuple[Line, ...]:
        """The tree's lines; the very same ones while part, folds and filter stay."""
        key = (part, self.browse.fold, self.browse.words)
        if key != self._lines_key:
            self._lines_key, self._kept = key, browsing.lines_shown(self.view, self.browse)
        return self._kept

    def _draw_status(self) -> None:
        self.query_one("#status", Text).show(
            live.status(self.view, self.doctor.clock()) if self.read else Content("reading")
        )

    def _draw_parts(self) -> None:
        tabs = []
        for part in self.view.parts:
            found = sum(1 for finding in self.view.findings.values() if finding.part == part.record.name)
            tabs.append(Tab(part.record.name, *live.part_title(part, found)))
        self.query_one("#parts", TabBar).show(tuple(tabs), self.browse.part)

    def draw_finding(self, *, at_once: bool = True) -> None:
        """What is known of the selection; not `at_once` where keys come first and the cursor may move on."""
        if self._later is not None:
            self._later.stop()
            self._later = None
        if at_once:
            self.query_one(FindingPane).show(self.selection, self.browse.tab)
        else:
            self._later = self.set_timer(_REST, self.draw_finding)

    @property
    def at_rest(self) -> bool:
        """Whether everything is drawn that the keys so far asked for."""
        return self.read and self._later is None

    @property
    def selection(self) -> Selection | None:
        """The row under the cursor, with what is known of it."""
        part = browsing.part_shown(self.view, self.browse)
        line = self.query_one(ModuleTree).line
        if part is None or line is None:
            return None
        return Selection(
            view=self.view,
            part=part,
            row=line.row,
            finding=finding_for(self.view, part, line.row),
            sources=self.doctor.sources,
            torch_frames=self.browse.torch_frames,
        )

    def _tick(self) -> None:
        if self.view.status == "running" and self.read:
            self._draw_status()
        self.draw_job()

    def step(self, browse: Browse) -> None:
        """Go to another place."""
        self.touched = self._pressed = True
        self.browse = browse
        self.draw()
        self._pressed = False

    @on(ModuleTree.Moved)
    def _moved(self, message: ModuleTree.Moved) -> None:
        self.touched = True
        self.browse = replace(self.browse, cursor=message.key)
        self.draw_finding(at_once=False)

    @on(ModuleTree.Wished)
    def _wished(self, message: ModuleTree.Wished) -> None:
        line = message.line
        match message.wish:
            case "toggle":
                self.step(browsing.toggled(self.browse, line))
            case "open":
                self.step(browsing.opened_or_inside(self.view, self.browse, line))
            case "close":
                self.step(browsing.closed_or_parent(self.view, self.browse, line))
            case "unfold":
                self.step(browsing.unfolded(self.browse, line))
            case "read":
                self.query_one(FindingPane).read()

    @on(TabBar.Chosen)
    def _chosen(self, message: TabBar.Chosen) -> None:
        if message.bar.id == "parts":
            self.step(browsing.begun(self.view, replace(self.browse, part=message.tab)))
        else:
            self.action_tab(message.tab)

    @on(Input.Changed, "#filter")
    def _filtered(self, message: Input.Changed) -> None:
        self.step(replace(self.browse, words=tuple(message.value.lower().split())))

    @on(Input.Submitted, "#filter")
    def _filter_kept(self) -> None:
        self.query_one(ModuleTree).focus()

"""What is known of the selected row, in tabs. Only the active tab is drawn, so that moving the cursor stays cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import ContentSwitcher

from exportdoctor_tui.pages.details import PAGES
from exportdoctor_tui.state.selection import TABS, TITLES, Selection
from exportdoctor_tui.widgets.bars import Tab, TabBar
from exportdoctor_tui.widgets.stack_pane import Frames, StackPane
from exportdoctor_tui.widgets.texts import TextPage

if TYPE_CHECKING:
    from pathlib import Path

    from textual.app import ComposeResult

    from exportdoctor.core.records.outcome import Frame


_SHORT = {"inputs": "In", "explain": "Why"}  # titles in a narrow pane


class FindingPane(Vertical):
    """Tabs, and below them a page of text or the stack."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._drawn: tuple[Selection, str] | None = None

    def compose(self) -> ComposeResult:
        yield TabBar(id="tabs")
        with ContentSwitcher(initial="page"):
            yield TextPage(id="page")
            yield StackPane(id="stack")

    def show(self, selection: Selection | None, wanted: str, *, said: str = "") -> None:
        """Draw a selection, on the `wanted` tab if it has that one; without one what is `said`, or nothing at all."""
        self.set_class(selection is None and not said, "absent")
        if selection is None:
            self._drawn = None
            self.query_one(TabBar).show((), "")
            self.query_one(ContentSwitcher).current = "page"
            self.query_one("#page", TextPage).show(Content(said))
            return
        tabs = selection.tabs()
        active = wanted if wanted in tabs else tabs[0]
        before, self._drawn = self._drawn, (selection, active)
        if before and (before[0].mark, before[1]) == (selection.mark, active):
            return
        same_row = before is not None and before[0].row.fqns == selection.row.fqns and before[1] == active
        named = ((tab, str(TABS.index(tab) + 1)) for tab in tabs)
        titles = tuple(
            Tab(tab, f"{number} {TITLES[tab]}", short=f"{number} {_SHORT.get(tab, TITLES[tab])}")
            for tab, number in named
        )
        self.query_one(TabBar).show(titles, active)
        self.query_one(ContentSwitcher).current = "stack" if active == "stack" else "page"
        if active == "stack":
            self.query_one(StackPane).show(selection)
            return
        self.query_one("#page", TextPage).show(PAGES[active](selection))
        if not same_row:  # the error stands at the end of a log
            page = self.query_one("#page", TextPage)
            (page.scroll_end if active == "log" else page.scroll_home)(animate=False)

    @property
    def frame(self) -> Frame | None:
        """The frame to open in an editor: the chosen one of the stack, else the culprit."""
        if self._drawn is None:
            return None
        selection, active = self._drawn
        return self.query_one(StackPane).frame if active == "stack" else selection.culprit

    @property
    def file(self) -> Path | None:
        """The file that the page shows: the script or the log."""
        if self._drawn is None or self._drawn[0].finding is None:
            return None
        selection, active = self._drawn
        finding = selection.finding
        names = {"repro": finding.repro.path if finding and finding.repro else None, "log": finding and finding.log}
        name = names.get(active)
        return selection.file(name) if name else None

    @property
    def text(self) -> Content:
        """The text of the page."""
        return self.query_one("#page", TextPage).content

    def read(self) -> None:
        """Give the page the focus, so that keys scroll it."""
        active = self._drawn[1] if self._drawn else "story"
        (self.query_one(Frames) if active == "stack" else self.query_one("#page", TextPage)).focus()

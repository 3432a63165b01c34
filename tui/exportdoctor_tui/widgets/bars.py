"""One line of tabs, and one line of keys. A click on a title or key is found by its column.

Textual's Tabs and Footer mount a widget for each tab or key; the footer alone took a fifth of the time that a screen
needs to open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from exportdoctor_tui.keymap import TABLES

if TYPE_CHECKING:
    from textual import events

_KEY_GAP = 2


@dataclass(frozen=True)
class Tab:
    """`title` is drawn in `style`, the active one marked as well; `short` stands for others where room is short."""

    id: str
    title: str
    style: str = ""
    short: str = ""


class TabBar(Widget):
    """Tabs side by side, without keys of its own: the screen has them."""

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, bar: TabBar, tab: str) -> None:
            super().__init__()
            self.bar = bar
            self.tab = tab

        @property
        def control(self) -> TabBar:
            return self.bar

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._tabs: tuple[Tab, ...] = ()
        self._active = ""

    def show(self, tabs: tuple[Tab, ...], active: str) -> None:
        """Draw these tabs."""
        if (tabs, active) != (self._tabs, self._active):
            self._tabs, self._active = tabs, active
            self.refresh()

    def render(self) -> Content:
        """The titles that fit, the active one on another background."""
        return Content("").join(
            Content.styled(
                text, f"bold {tab.style} on $primary 30%" if tab.id == self._active else tab.style or "$foreground 60%"
            )
            for tab, text in self._pieces()
        )

    def on_click(self, event: events.Click) -> None:
        """Find the title under the pointer."""
        column = self.gutter.left
        for tab, text in self._pieces():
            if column <= event.x < column + cell_len(text):
                self.post_message(self.Chosen(self, tab.id))
                return
            column += cell_len(text)

    def _pieces(self) -> list[tuple[Tab, str]]:
        """Each tab with its text: the titles apart, close together, or short but for the active one.

        Where not even those fit, the first ones are left out as far as the active one needs it.
        """
        room = self.content_size.width
        for before, after in ((" ", "  "), (" ", " "), ("", " ")):
            pieces = [(tab, f"{before}{tab.title}{after}") for tab in self._tabs]
            if sum(cell_len(text) for _, text in pieces) <= room + len(after):
                return pieces
        pieces = [(tab, f"{tab.title if tab.id == self._active else tab.short or tab.title} ") for tab in self._tabs]
        last = next((number for number, (tab, _) in enumerate(pieces) if tab.id == self._active), 0)
        first = 0
        while first < last and sum(cell_len(text) for _, text in pieces[first : last + 1]) > room:
            first += 1
        return pieces[first:]


class KeyBar(Widget):
    """The keys of these tables that have a word for the footer. A click does what the key does."""

    def __init__(self, tables: tuple[str, ...]) -> None:
        super().__init__()
        self._keys = tuple(key for table in tables for key in TABLES[table] if key.footer)

    def render(self) -> Content:
        """As many keys as there is room for."""
        return Content(" " * _KEY_GAP).join(
            Content.assemble((key.shown, "bold $text-accent"), f" {key.footer}") for key in self._keys
        )

    async def on_click(self, event: events.Click) -> None:
        """Press the key under the pointer."""
        column = self.gutter.left
        for key in self._keys:
            width = cell_len(f"{key.shown} {key.footer}")
            if column <= event.x < column + width:
                self.app.simulate_key(key.keys.partition(",")[0])
                return
            column += width + _KEY_GAP

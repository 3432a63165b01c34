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

from exportdoctor_tui.keymap import TABLES, Key

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
            _mark(text, f"bold {tab.style} on $primary 30%")
            if tab.id == self._active
            else Content.styled(text, tab.style or "$foreground 75%")
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
        """Each tab with its text: the titles apart, close together, or short, then of the others the start alone.

        Where not even those fit, the first ones are left out as far as the active one needs it.
        """
        room = self.content_size.width
        for before, after, short in ((" ", "  ", False), (" ", " ", False), ("", " ", False), ("", " ", True)):
            pieces = [(tab, f"{before}{(short and tab.short) or tab.title}{after}") for tab in self._tabs]
            if sum(cell_len(text) for _, text in pieces) <= room + 1:
                return pieces
        starts = ((tab, (tab.short or tab.title) if tab.id == self._active else tab.short[:5]) for tab in self._tabs)
        pieces = [(tab, f"{start or tab.title} ") for tab, start in starts]
        last = next((number for number, (tab, _) in enumerate(pieces) if tab.id == self._active), 0)
        first = 0
        while first < last and sum(cell_len(text) for _, text in pieces[first : last + 1]) > room + 1:
            first += 1
        return pieces[first:]


def _mark(text: str, style: str) -> Content:
    """A tab's text with as much room marked behind the title as before it."""
    end = len(text.rstrip()) + len(text) - len(text.lstrip())
    return Content.assemble((text[:end], style), text[end:])


class KeyBar(Widget):
    """The keys of these tables that have a word for the footer. A click does what the key does."""

    def __init__(self, tables: tuple[str, ...]) -> None:
        super().__init__()
        self._keys: tuple[Key, ...] = ()
        self.show(tables)

    def show(self, tables: tuple[str, ...]) -> None:
        """Name the keys of these tables; a key that is in several does what the first one says."""
        found: dict[str, Key] = {}
        for key in (key for table in tables for key in TABLES[table] if key.footer):
            found.setdefault(key.shown, key)
        self._keys = tuple(found.values())
        self.refresh()

    def render(self) -> Content:
        """As many keys as there is room for."""
        room, fitting = self.content_size.width, []
        for key in self._keys:
            room -= cell_len(f"{key.shown} {key.footer}") + _KEY_GAP
            if room < -_KEY_GAP:
                break
            fitting.append(Content.assemble((key.shown, "bold $text-accent"), f" {key.footer}"))
        return Content(" " * _KEY_GAP).join(fitting)

    async def on_click(self, event: events.Click) -> None:
        """Press the key under the pointer."""
        column = self.gutter.left
        for key in self._keys:
            width = cell_len(f"{key.shown} {key.footer}")
            if column <= event.x < column + width:
                self.app.simulate_key(key.keys.partition(",")[0])
                return
            column += width + _KEY_GAP

"""The last line: the keys that one needs most, made from the table of keys. A click does what the key does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from exportdoctor_tui.keymap import TABLES

if TYPE_CHECKING:
    from textual import events

_GAP = 2


class KeyBar(Widget):
    """Textual's own footer is a widget for each key: a fifth of what it costs to open a screen."""

    def __init__(self, tables: tuple[str, ...]) -> None:
        super().__init__()
        self._keys = tuple(key for table in tables for key in TABLES[table] if key.footer)

    def render(self) -> Content:
        """As many as there is room for."""
        return Content(" " * _GAP).join(
            Content.assemble((key.shown, "bold $text-accent"), f" {key.footer}") for key in self._keys
        )

    async def on_click(self, event: events.Click) -> None:
        """Which key lies under the pointer."""
        column = self.gutter.left
        for key in self._keys:
            width = cell_len(f"{key.shown} {key.footer}")
            if column <= event.x < column + width:
                self.app.simulate_key(key.keys.partition(",")[0])
                return
            column += width + _GAP

"""A line of tabs: draws their titles, says which was clicked. Keys belong to the screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

if TYPE_CHECKING:
    from textual import events

_GAP = "  "


@dataclass(frozen=True)
class Tab:
    """`title` is drawn in `style`, the active one marked as well."""

    id: str
    title: str
    style: str = ""


class TabBar(Widget):
    """Tabs side by side."""

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, bar: TabBar, tab: str) -> None:
            super().__init__()
            self.bar = bar
            self.tab = tab

        @property
        def control(self) -> TabBar:
            """The bar that was clicked."""
            return self.bar

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._tabs: tuple[Tab, ...] = ()
        self._active = ""

    def show(self, tabs: tuple[Tab, ...], active: str) -> None:
        """Draw other tabs."""
        if (tabs, active) != (self._tabs, self._active):
            self._tabs, self._active = tabs, active
            self.refresh()

    def render(self) -> Content:
        """All titles; the active one on a ground of its own."""
        found = []
        for tab in self._tabs:
            active = tab.id == self._active
            found.append(
                Content.styled(
                    f" {tab.title} ", f"bold {tab.style} on $primary 30%" if active else tab.style or "$foreground 60%"
                )
            )
        return Content(_GAP[:1]).join(found)

    def on_click(self, event: events.Click) -> None:
        """Which title lies under the pointer."""
        column = 0
        for tab in self._tabs:
            width = cell_len(tab.title) + 3
            if column <= event.x - self.gutter.left < column + width:
                self.post_message(self.Chosen(self, tab.id))
                return
            column += width

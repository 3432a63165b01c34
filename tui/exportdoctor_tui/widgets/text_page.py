"""A page of text that scrolls: wraps it to its width, and draws the lines that are visible.

Law: other text is painted without a new layout of the screen, which would cost more than all else that a key does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

if TYPE_CHECKING:
    from textual import events


class Leaf(ScrollView, can_focus=True):
    """Shows one Content."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.content = Content("")
        self._wrapped: list[Strip] | None = None
        self._blank = Strip([])

    def show(self, content: Content) -> None:
        """Draw other text, if it is other."""
        if not content.is_same(self.content):
            self.content = content
            self._fit()

    def render_line(self, y: int) -> Strip:
        """A line as it is scrolled."""
        strips = self._strips()
        number = y + self.scroll_offset.y
        return strips[number] if number < len(strips) else self._blank

    def on_resize(self, _event: events.Resize) -> None:
        """Another width, other lines."""
        self._fit()

    def notify_style_update(self) -> None:
        """Another theme, other colours."""
        self._wrapped = None
        super().notify_style_update()

    def _strips(self) -> list[Strip]:
        if self._wrapped is None:
            width = max(1, self.scrollable_content_region.width)
            self._blank = Strip.blank(width, self.rich_style)
            self._wrapped = Visual.to_strips(self, self.content, width, None, self.visual_style)
        return self._wrapped

    def _fit(self) -> None:
        self._wrapped = None
        size = Size(self.scrollable_content_region.width, len(self._strips()))
        if size != self.virtual_size:
            # by its own setter it would lay out the whole screen; only the bar depends on it
            self.set_reactive(ScrollView.virtual_size, size)
            self._scroll_update(size)
        self.refresh()

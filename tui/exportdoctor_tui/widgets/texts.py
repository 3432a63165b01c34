"""Text that changes without a layout of the whole screen.

Textual's Static asks for a layout at every update, which costs more than everything else that a key press does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual
from textual.widgets import Static

from exportdoctor_tui.keymap import PAGE, bindings

if TYPE_CHECKING:
    from textual import events
    from textual.binding import BindingType


_FOUND = Style(reverse=True)
_MARKS = "/.,_-"  # after which a long word is broken, the best first
_HANG = re.compile(r"\s*(?:(?:▶ +)?\d+ [┃│] *|\d+\. |(?:before|after) +[✓✗] |Export +|[✓✗·→○●▶] |[+-] +|# )?")


def wrap_hanging(content: Content, width: int) -> Content:
    """`content` in lines of at most `width` cells; what is wrapped stays right of its line's number, sign or indent."""
    lines: list[Content] = []
    for line in content.split("\n", allow_blank=True):
        if line.cell_length <= width:
            lines.append(line)
            continue
        found = _HANG.match(line.plain)
        hang = min(found.end() if found else 0, width // 2)
        pad, start = 0, hang
        while line.cell_length > width - pad:
            end = _break_at(line.plain, width - pad, start)
            lines.append(line[:end].rstrip().pad_left(pad))
            line = line[end:]
            line = line[len(line.plain) - len(line.plain.lstrip()) :]
            pad, start = hang, 0
        if line.plain:
            lines.append(line.pad_left(pad))
    return Content("\n").join(lines)


def _break_at(text: str, width: int, start: int) -> int:
    """Where to end a line of at most `width` cells: before a word, or inside one that is longer than a line."""
    end = len(set_cell_size(text, width).rstrip()) if len(text) != cell_len(text) else width
    space = text.rfind(" ", start, end + 1)
    if space > start:
        return space
    marks = [text.rfind(mark, start + width // 3, end) for mark in _MARKS]
    return next((mark + 1 for mark in marks if mark > 0), max(1, end))


class TextBlock(Static):
    """A few lines; the screen is laid out again only where their number may have changed."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, markup=False)
        self._shown = Content("")

    def show(self, content: Content) -> None:
        """Draw `content`, if it differs from what is drawn."""
        if content.is_same(self._shown):
            return
        before, self._shown = self._shown, content
        self.update(content, layout=self._lines(before) != self._lines(content))

    def _lines(self, content: Content) -> int:
        """About how many lines `content` takes up: wrapping at words may add one."""
        width = max(1, self.content_size.width)
        return sum(max(1, -(-each.cell_length // width)) for each in content.split("\n", allow_blank=True))


class TextPage(ScrollView, can_focus=True):
    """A page that scrolls: wraps its text to its width, and draws only the visible lines."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(PAGE)

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.content = Content("")
        self._wrapped: list[Strip] | None = None
        self._found: int | None = None
        self._centre = ""
        self._blank = Strip([])

    def show(self, content: Content, *, centre: str = "") -> None:
        """Draw `content`, if it differs from what is drawn; the first line that starts with `centre` in the middle."""
        if not content.is_same(self.content):
            self.content, self._centre = content, centre
            self._found = None
            self._fit()

    def find(self, words: str, *, further: bool = False) -> bool:
        """Scroll to the next line with these words, from the first one in sight, or with `further` behind the last one
        that was found; after the end from the top. False where there is none; no words take the mark away."""
        lines = [strip.text.casefold() for strip in self._strips()]
        start = self._found + 1 if further and self._found is not None else self.scroll_offset.y
        order = (*range(start, len(lines)), *range(min(start, len(lines))))
        self._found = next((number for number in order if words and words.casefold() in lines[number]), None)
        if self._found is not None:
            self.scroll_to(y=max(0, self._found - self.size.height // 3), animate=False)
        self.refresh()
        return self._found is not None

    def render_line(self, y: int) -> Strip:
        strips = self._strips()
        number = y + self.scroll_offset.y
        strip = strips[number] if number < len(strips) else self._blank
        return strip.apply_style(_FOUND) if number == self._found else strip

    def on_resize(self, _event: events.Resize) -> None:
        self._fit()

    def notify_style_update(self) -> None:
        self._wrapped = None
        super().notify_style_update()

    def _strips(self) -> list[Strip]:
        if self._wrapped is None:
            width = max(1, self.scrollable_content_region.width)
            self._blank = Strip.blank(width, self.rich_style)
            self._wrapped = Visual.to_strips(self, wrap_hanging(self.content, width), width, None, self.visual_style)
        return self._wrapped

    def _fit(self) -> None:
        self._wrapped = None
        size = Size(self.scrollable_content_region.width, len(self._strips()))
        if size != self.virtual_size:
            # the property's setter would lay out the whole screen; only the scroll bar depends on it
            self.set_reactive(ScrollView.virtual_size, size)
            self._scroll_update(size)
        if self._centre:
            lines = (number for number, strip in enumerate(self._strips()) if strip.text.startswith(self._centre))
            self.scroll_to(y=max(0, next(lines, 0) - self.size.height // 2), animate=False)
        self.refresh()

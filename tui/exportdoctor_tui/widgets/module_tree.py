"""The tree of submodules: draws the visible lines, moves a cursor over them, and posts what the user asks for.

Textual's Tree has no columns and keeps a node for each row; here a key press draws two lines again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from exportdoctor_tui.keymap import TREE, bindings
from exportdoctor_tui.widgets.tree_columns import Columns, columns_for, heading, indentation, pieces

if TYPE_CHECKING:
    from textual import events
    from textual.binding import BindingType

    from exportdoctor_tui.state.outline import Line
    from exportdoctor_tui.state.run_view import PartView

TreeAction = Literal["toggle", "open", "close", "unfold", "read"]


class ModuleTree(ScrollView, can_focus=True):
    """Lines with a cursor; the widget's first line is the heading, which does not scroll."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(TREE)
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"module-tree--{name}"
        for name in (
            "heading", "cursor", "pass", "fail", "fails_own", "fails_child", "cured", "crashed", "timed_out",
            "not_called", "not_asked", "unknown", "quiet", "name", "finding",
        )
    }  # fmt: skip
    cursor: reactive[int] = reactive(0)

    class CursorMoved(Message):
        """The cursor is on the line of this key."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class ActionRequested(Message):
        """The user asks for an action on a line."""

        def __init__(self, action: TreeAction, line: Line) -> None:
            super().__init__()
            self.action = action
            self.line = line

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._part: PartView | None = None
        self._lines: tuple[Line, ...] = ()
        self._columns: tuple[int, Columns] | None = None
        self._quiet = False
        self._strips: dict[tuple[int, bool, int], Strip] = {}

    def show(self, part: PartView | None, lines: tuple[Line, ...], cursor: str | None) -> None:
        """Draw lines. The cursor goes to the line of that key, or stays at its height where there is none."""
        if part is not self._part or lines is not self._lines:
            self._part, self._lines, self._columns = part, lines, None
            self._strips.clear()
            self._fit()
            self.refresh()
        keys = [line.key for line in lines]
        number = keys.index(cursor) if cursor in keys else min(self.cursor, max(0, len(lines) - 1))
        self._quiet = True
        self.cursor = number
        self._quiet = False
        self._follow_cursor()

    @property
    def line(self) -> Line | None:
        """The line under the cursor."""
        return self._lines[self.cursor] if 0 <= self.cursor < len(self._lines) else None

    def render_line(self, y: int) -> Strip:
        """The heading, or a visible line; each is cached until its content, width or style changes."""
        width = self.scrollable_content_region.width
        number = y - 1 + self.scroll_offset.y if y else -1
        key = (number, number == self.cursor, width)
        if key not in self._strips:
            self._strips[key] = self._strip(number, width)
        return self._strips[key]

    def _strip(self, number: int, width: int) -> Strip:
        """A line by its number; -1 is the heading."""
        if self._part is None or number >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        columns = self._columns_in(width)
        if number < 0:
            return Strip([Segment(heading(columns), self._style("heading"))]).adjust_cell_length(width, self.rich_style)
        under = Style(bgcolor=self._style("cursor").bgcolor) if number == self.cursor else Style.null()
        segments = [
            Segment(text, self._style(colour) + under)
            for text, colour in pieces(self._lines[number], self._part, columns)
        ]
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def notify_style_update(self) -> None:
        self._strips.clear()
        super().notify_style_update()

    def validate_cursor(self, cursor: int) -> int:
        return max(0, min(cursor, len(self._lines) - 1))

    def watch_cursor(self, old: int, new: int) -> None:
        """Scroll to the cursor, draw the two lines again, and post the move."""
        self._follow_cursor()
        for number in (old, new):
            self.refresh(Region(0, number + 1 - self.scroll_offset.y, self.size.width, 1))
        if self.line is not None and not self._quiet:
            self.post_message(self.CursorMoved(self.line.key))

    def on_resize(self, _event: events.Resize) -> None:
        self._fit()

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor; a click on the arrow or a double click opens or closes the line."""
        number = event.get_content_offset_capture(self).y - 1 + self.scroll_offset.y
        if event.get_content_offset_capture(self).y < 1 or number >= len(self._lines):
            return
        line = self._lines[number]
        columns = self._columns_in(self.scrollable_content_region.width)
        arrow = event.get_content_offset_capture(self).x <= len(indentation(line.depth, columns)) + 1
        self.cursor = number
        if arrow or event.chain == 2:
            self.post_message(self.ActionRequested("toggle", line))

    def action_move(self, distance: int) -> None:
        self.cursor += distance

    def action_page(self, pages: int) -> None:
        self.cursor += pages * max(1, self.size.height - 2)

    def action_edge(self, last: bool) -> None:
        self.cursor = len(self._lines) - 1 if last else 0

    def action_request(self, action: TreeAction) -> None:
        """Post that the user asks for this action on the current line."""
        if self.line is not None:
            self.post_message(self.ActionRequested(action, self.line))

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"module-tree--{name or 'quiet'}")

    def _columns_in(self, width: int) -> Columns:
        """The columns, computed once for each width and set of lines."""
        if self._columns is None or self._columns[0] != width:
            assert self._part is not None
            self._columns = width, columns_for(width, self._part, self._lines)
        return self._columns[1]

    def _fit(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines) + 1)

    def _follow_cursor(self) -> None:
        # one line of context above: the heading covers the first visible row
        self.scroll_to_region(Region(0, self.cursor, 1, 2), animate=False, force=True)

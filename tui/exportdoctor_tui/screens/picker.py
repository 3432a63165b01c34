"""A dialog to pick one or several items of a long list by name: typing filters, space marks, enter takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from exportdoctor_tui.actions.choices import PickerItem
from exportdoctor_tui.sanitize import fit, line

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType

_NAME = 34  # cells of an id, where there are longer ones


class FilterInput(Input):
    """The filter. A space is not part of it: it marks an item."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return key != "space" and super().check_consume_key(key, character)


class Picker(ModalScreen[tuple[str, ...] | None]):
    """Returns the ids that were picked, or None.

    `known` items are listed at once; `more` is called in a thread, because it may take seconds, and may raise. With
    `many` several can be marked; enter without a mark takes the item under the cursor.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back", priority=True),
        Binding("down", "move(1)", "Down", priority=True),
        Binding("up", "move(-1)", "Up", priority=True),
        Binding("space", "mark", "Mark", priority=True),
        Binding("enter", "take", "Take", priority=True),
    ]

    class Found(Message):
        """`more` has returned these items, or has raised `problem`."""

        def __init__(self, items: tuple[PickerItem, ...], problem: str = "") -> None:
            super().__init__()
            self.items = items
            self.problem = problem

    def __init__(
        self, title: str, known: tuple[PickerItem, ...], more: Callable[[], tuple[PickerItem, ...]], *, many: bool
    ) -> None:
        super().__init__()
        self._title = title
        self._items = known
        self._more = more
        self._many = many
        self._marked: tuple[str, ...] = ()
        self._shown: tuple[PickerItem, ...] = ()

    def compose(self) -> ComposeResult:
        with Vertical(id="pick") as box:
            box.border_title = Content(line(self._title))
            mark = "space: mark · " if self._many else ""
            box.border_subtitle = Content(f"type: filter · {mark}enter: choose · esc: back")
            yield FilterInput(placeholder="part of a name", id="typed")
            yield OptionList(id="offered", markup=False)
            yield Static(Content.styled("looking for more …", "$foreground 75%"), id="awaited", markup=False)

    def on_mount(self) -> None:
        """Show what is known, and start `more`."""
        self.query_one(OptionList).can_focus = False
        self._draw()
        self._look()

    @work(thread=True)
    def _look(self) -> None:
        try:
            self.post_message(self.Found(self._more()))
        except Exception as error:
            self.post_message(self.Found((), str(error)))

    def on_picker_found(self, message: Picker.Found) -> None:
        """Add the new items below the known ones, and missing remarks to these."""
        known = {item.id for item in self._items}
        remarks = {item.id: item.remark for item in message.items}
        kept = [PickerItem(item.id, item.remark or remarks.get(item.id, "")) for item in self._items]
        self._items = (*kept, *(item for item in message.items if item.id not in known))
        awaited = self.query_one("#awaited", Static)
        awaited.display = bool(message.problem)
        awaited.update(Content.styled(line(message.problem), "$text-error"))
        self._draw()

    @on(Input.Changed)
    def _draw(self) -> None:
        words = self.query_one(Input).value.lower().split()
        offered = self.query_one(OptionList)
        at = self._under_cursor()
        self._shown = tuple(
            item for item in self._items if all(word in f"{item.id} {item.remark}".lower() for word in words)
        )
        width = min(_NAME, max((len(item.id) for item in self._shown), default=0))
        offered.set_options([Option(self._row(item, width)) for item in self._shown])
        names = [item.id for item in self._shown]
        offered.highlighted = names.index(at) if at in names else 0 if names else None

    def _row(self, item: PickerItem, width: int) -> Content:
        marked = item.id in self._marked
        sign = ("● " if marked else "○ ") if self._many else ""
        name = line(item.id)
        return Content.assemble(
            (sign, "$text-accent"),
            (fit(name, max(width, min(len(name), 60))), "bold" if marked else ""),
            (f"  {line(item.remark)}", "$foreground 75%"),
        )

    def _under_cursor(self) -> str | None:
        number = self.query_one(OptionList).highlighted
        return self._shown[number].id if number is not None and number < len(self._shown) else None

    def action_move(self, step: int) -> None:
        offered = self.query_one(OptionList)
        (offered.action_cursor_down if step > 0 else offered.action_cursor_up)()

    def action_mark(self) -> None:
        """Mark or unmark the item under the cursor."""
        at = self._under_cursor()
        if at is None or not self._many:
            return
        self._marked = tuple(name for name in self._marked if name != at) if at in self._marked else (*self._marked, at)
        self._draw()

    def action_take(self) -> None:
        """Return the marked items, else the one under the cursor."""
        at = self._under_cursor()
        chosen = self._marked or ((at,) if at is not None else ())
        if chosen:
            self.dismiss(chosen)

    @on(OptionList.OptionSelected)
    def _take_click(self, event: OptionList.OptionSelected) -> None:
        """A click marks where several items can be picked, else it takes one."""
        event.stop()
        if self._many:
            self.action_mark()
        else:
            self.action_take()

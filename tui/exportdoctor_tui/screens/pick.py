"""Pick one or several of many things by name: typing filters, space marks, enter takes; gives back ids, or None.

What is known at once is listed first; `more` is asked in a thread, for it may take seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import on, work
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from exportdoctor_tui.sanitize import fitted, line

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType

_NAME = 34  # cells of an id, where there are longer ones


class Choice(NamedTuple):
    """`id` is given back; `remark` is what there is to say of it."""

    id: str
    remark: str = ""


class Typed(Input):
    """What is typed; a space is none of it."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Whether a key is for the text."""
        return key != "space" and super().check_consume_key(key, character)


class Pick(ModalScreen[tuple[str, ...] | None]):
    """With `many` several can be marked; enter without a mark takes the one under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back", priority=True),
        Binding("down", "move(1)", "Down", priority=True),
        Binding("up", "move(-1)", "Up", priority=True),
        Binding("space", "mark", "Mark", priority=True),
        Binding("enter", "take", "Take", priority=True),
    ]

    class Found(Message):
        """What `more` gave; `problem` where it gave nothing."""

        def __init__(self, choices: tuple[Choice, ...], problem: str = "") -> None:
            super().__init__()
            self.choices = choices
            self.problem = problem

    def __init__(
        self, title: str, known: tuple[Choice, ...], more: Callable[[], tuple[Choice, ...]], *, many: bool
    ) -> None:
        super().__init__()
        self._title = title
        self._choices = known
        self._more = more
        self._many = many
        self._marked: tuple[str, ...] = ()
        self._shown: tuple[Choice, ...] = ()

    def compose(self) -> ComposeResult:
        """What is typed, the list, and what is still awaited."""
        with Vertical(id="pick") as box:
            box.border_title = Content(line(self._title))
            mark = "space: mark · " if self._many else ""
            box.border_subtitle = Content(f"type: filter · {mark}enter: take · esc: back")
            yield Typed(placeholder="part of a name", id="typed")
            yield OptionList(id="offered", markup=False)
            yield Static(Content.styled("looking for more …", "$foreground 60%"), id="awaited", markup=False)

    def on_mount(self) -> None:
        """Show what is known, and ask for the rest."""
        self.query_one(OptionList).can_focus = False
        self._draw()
        self._look()

    @work(thread=True)
    def _look(self) -> None:
        try:
            self.post_message(self.Found(self._more()))
        except Exception as error:
            self.post_message(self.Found((), str(error)))

    def on_pick_found(self, message: Pick.Found) -> None:
        """The rest, below what was there."""
        old = {choice.id: choice for choice in self._choices}
        remarks = {choice.id: choice.remark for choice in message.choices}
        kept = [Choice(choice.id, choice.remark or remarks.get(choice.id, "")) for choice in self._choices]
        self._choices = (*kept, *(choice for choice in message.choices if choice.id not in old))
        awaited = self.query_one("#awaited", Static)
        awaited.display = bool(message.problem)
        awaited.update(Content.styled(line(message.problem), "$text-error"))
        self._draw()

    @on(Input.Changed)
    def _typed(self) -> None:
        self._draw()

    def _draw(self) -> None:
        words = self.query_one(Input).value.lower().split()
        offered = self.query_one(OptionList)
        at = self._under_cursor()
        self._shown = tuple(
            choice for choice in self._choices if all(word in f"{choice.id} {choice.remark}".lower() for word in words)
        )
        width = min(_NAME, max((len(choice.id) for choice in self._shown), default=0))
        offered.set_options([Option(self._row(choice, width)) for choice in self._shown])
        names = [choice.id for choice in self._shown]
        offered.highlighted = names.index(at) if at in names else 0 if names else None

    def _row(self, choice: Choice, width: int) -> Content:
        marked = choice.id in self._marked
        sign = ("● " if marked else "○ ") if self._many else ""
        name = line(choice.id)
        return Content.assemble(
            (sign, "$text-accent"),
            (fitted(name, max(width, min(len(name), 60))), "bold" if marked else ""),
            (f"  {line(choice.remark)}", "$foreground 60%"),
        )

    def _under_cursor(self) -> str | None:
        number = self.query_one(OptionList).highlighted
        return self._shown[number].id if number is not None and number < len(self._shown) else None

    def action_move(self, step: int) -> None:
        """Up or down."""
        offered = self.query_one(OptionList)
        (offered.action_cursor_down if step > 0 else offered.action_cursor_up)()

    def action_mark(self) -> None:
        """Mark what is under the cursor, or take the mark away."""
        at = self._under_cursor()
        if at is None or not self._many:
            return
        self._marked = tuple(name for name in self._marked if name != at) if at in self._marked else (*self._marked, at)
        self._draw()

    def action_take(self) -> None:
        """What is marked, else what is under the cursor."""
        at = self._under_cursor()
        chosen = self._marked or ((at,) if at is not None else ())
        if chosen:
            self.dismiss(chosen)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        """A click marks where several can be, else takes."""
        event.stop()
        if self._many:
            self.action_mark()
        else:
            self.action_take()

"""Choose one of several things: a list over the screen; gives back the number chosen, or None."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from exportdoctor_tui.sanitize import line

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType


class Choose(ModalScreen[int | None]):
    """`choices` are titles, shown as plain text."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss(None)", "Back")]

    def __init__(self, title: str, choices: tuple[str, ...]) -> None:
        super().__init__()
        self._title = title
        self._choices = choices

    def compose(self) -> ComposeResult:
        """The list."""
        options = OptionList(*(Option(Content(line(choice))) for choice in self._choices), id="choices", markup=False)
        options.border_title = Content(line(self._title))
        options.border_subtitle = Content("enter: this one · esc: back")
        yield options

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """That one."""
        self.dismiss(event.option_index)

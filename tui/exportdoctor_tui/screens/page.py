"""Text over the screen: help, the output of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from exportdoctor_tui.keymap import TABLES, Key

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType


class Page(ModalScreen[None]):
    """Any key that leaves leaves."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark,f1,o", "dismiss(None)", "Back")]

    def __init__(self, title: str, text: Content) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """The text, which scrolls."""
        with VerticalScroll(id="leaf") as leaf:
            leaf.border_title = Content(self._title)
            leaf.border_subtitle = Content("esc: back")
            yield Static(self._text, markup=False)


def help_text(tables: tuple[str, ...]) -> Content:
    """The keys of these tables, and what the signs mean."""
    found = [
        Content.assemble(
            ("✓ passes  ", "$text-success"), ("✗ fails  ", "$text-error"), ("◐ cured  ", "$text-warning"),
            ("☠ crashed  ", "$text-secondary"), ("⧗ timed out  ", "$text-warning"),
            ("○ never called  · not asked yet", "$foreground 60%"),
        )
    ]  # fmt: skip
    for table in tables:
        found += [Content(""), Content.styled(table, "bold $text-accent"), *map(_row, TABLES[table])]
    return Content("\n").join(found)


def _row(key: Key) -> Content:
    return Content.assemble((f"  {key.shown:>6}  ", "bold"), key.what)

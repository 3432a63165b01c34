"""Dialogs over a screen: a menu, and a page of text such as help or the output of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from exportdoctor_tui.keymap import LIST, TABLES, Key, bindings
from exportdoctor_tui.sanitize import block, line

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

_WORDS = (
    ("fails itself", "its own code cannot be exported"),
    ("attn fails", "its own code can; its child attn cannot"),
    ("same as 0.norm1", "identical to 0.norm1, which was exported"),
    ("5 modules", "this one and what is below it, all alike"),
    ("exp dec onnx load run", "stages of --to onnx and ort"),
    ("cured", "fails as it is, exports with shims"),
)
_DIFF = {"+": "$text-success", "-": "$text-error", "@": "$text-accent"}


class _Choices(OptionList):
    """A list that j and k move in as well."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(LIST)


class Menu(ModalScreen[int | None]):
    """Returns the number of the chosen title, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss(None)", "Back")]

    def __init__(self, title: str, choices: tuple[str, ...]) -> None:
        super().__init__()
        self._title = title
        self._choices = choices

    def compose(self) -> ComposeResult:
        options = _Choices(*(Option(Content(line(choice))) for choice in self._choices), id="choices", markup=False)
        options.border_title = Content(line(self._title))
        options.border_subtitle = Content("enter: choose · esc: back")
        yield options

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)


class Page(ModalScreen[None]):
    """Text that scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark,f1,o", "dismiss(None)", "Back")]

    def __init__(self, title: str, text: Content) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="leaf") as leaf:
            leaf.border_title = Content(self._title)
            leaf.border_subtitle = Content("esc: back")
            yield Static(self._text, markup=False)


def help_text(tables: tuple[str, ...]) -> Content:
    """The keys of these tables, and what the symbols mean."""
    lines = [
        Content.assemble(
            ("✓ passes  ", "$text-success"), ("✗ fails  ", "$text-error"), ("✚ cured  ", "$text-warning"),
            ("☠ crashed  ", "$text-secondary"), ("◷ timed out  ", "$text-secondary"),
            ("○ not called  · not tried", "$foreground 75%"),
        )
    ]  # fmt: skip
    if "Tree of submodules" in tables:
        lines += [Content(""), Content.styled("Words", "bold $text-accent"), *map(_word_line, _WORDS)]
    for table in tables:
        lines += [Content(""), Content.styled(table, "bold $text-accent"), *map(_key_line, TABLES[table])]
    return Content("\n").join(lines)


def _word_line(word: tuple[str, str]) -> Content:
    return Content.assemble((f"  {word[0]:<23}", "bold"), word[1])


def _key_line(key: Key) -> Content:
    return Content.assemble((f"  {key.shown:>6}  ", "bold"), key.what)


def output_text(text: str) -> Content:
    """What a command printed, with a unified diff at its end in colours."""
    shown = block(text).strip("\n")
    if not shown:
        return Content.styled("(no output yet)", "$foreground 75%")
    if "\n@@ " not in shown:
        return Content(shown)
    head, mark, diff = shown.partition("\n--- ")
    lines = [Content.styled(each, _DIFF.get(each[:1], "")) for each in (mark.lstrip("\n") + diff).splitlines()]
    return Content("\n").join((Content(head), *lines))

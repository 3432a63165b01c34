"""The captured stack: frames above, the source of the chosen one below."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from exportdoctor.report.wording import count, short_path
from exportdoctor_tui.keymap import STACK, bindings
from exportdoctor_tui.pages.code import code
from exportdoctor_tui.sanitize import line
from exportdoctor_tui.widgets.texts import TextPage

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from exportdoctor.core.records.outcome import Frame
    from exportdoctor_tui.state.selection import Selection

_AROUND = 30


class Frames(OptionList):
    """The frames, with the keys j and k in addition."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(STACK)


class StackPane(Vertical):
    """Frames from the outermost to the innermost, as Python prints them; the culprit is chosen at first."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._selection: Selection | None = None
        self._drawn: tuple[Frame, ...] | None = None

    def compose(self) -> ComposeResult:
        yield Frames(id="frames", markup=False)
        yield TextPage(id="source")

    def show(self, selection: Selection) -> None:
        """Draw the stack of a selection; the same stack keeps its chosen frame."""
        self._selection = selection
        if selection.frames == self._drawn:
            return
        self._drawn = selection.frames
        frames = self.query_one(Frames)
        hidden = len(selection.finding.stack) - len(selection.frames) if selection.finding else 0
        rest = Content.styled(f"  … t shows {count(hidden, 'frame')} of torch", "$foreground 75%")
        frames.set_options(
            [
                *(Option(_prompt(frame)) for frame in selection.frames),
                *([Option(rest, disabled=True)] if hidden else ()),
            ]
        )
        culprit = selection.culprit
        frames.highlighted = selection.frames.index(culprit) if culprit else None
        self._show_source()

    @property
    def frame(self) -> Frame | None:
        """The chosen frame."""
        number = self.query_one(Frames).highlighted
        frames = self._drawn or ()
        return frames[number] if number is not None and number < len(frames) else None

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self._show_source()

    def _show_source(self) -> None:
        frame, selection = self.frame, self._selection
        if frame is None or selection is None:
            return
        excerpt = selection.sources.excerpt(frame, around=_AROUND)
        source = self.query_one("#source", TextPage)
        source.show(code(excerpt, expression=frame.expression), centre="▶")
        inside = f"  in {frame.module}" if frame.module else ""
        source.border_title = Content(line(f"{short_path(frame.file)}:{frame.line}{inside}"))


def _prompt(frame: Frame) -> Content:
    """File name and line, which a narrow pane must not cut, then the function; the path is shown above the source."""
    name, where = line(frame.function), line(f"{PurePath(frame.file).name}:{frame.line}")
    if not frame.user:
        return Content.styled(f"  {where}  {name}", "$foreground 75%")
    return Content.assemble(("● ", "$text-accent"), (where, "bold"), f"  {name}")

"""The tab Numbers: the ladder of the part, stage by stage, and a plot of the first stage that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from exportdoctor.report.error_plot import stage_in_text
from exportdoctor.report.wording.ladder import (
    LADDER_HEADER,
    LADDER_LEGEND,
    ladder_cells,
    ladder_details,
    ladder_headline,
    stage_picture,
)
from exportdoctor_tui.sanitize import line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exportdoctor.core.protocol.numbers_ladder import LadderResult
    from exportdoctor_tui.state.selection import Selection

_COLOURS = {"✓": "$text-success", "✗": "$text-error"}


def numbers(selection: Selection) -> Content:
    """The whole tab; what is wrong with the file, where it cannot be read."""
    ladder = selection.ladder()
    if ladder is None:
        return Content(f"{line(str(selection.ladder_file))} holds no ladder. Press a to compare the numbers again.")
    return Content("\n").join([*_table(ladder), Content(""), *_details(ladder), *_plot(ladder)])


def _table(ladder: LadderResult) -> Iterator[Content]:
    rows = [tuple(map(line, row)) for row in ladder_cells(ladder)]
    widths = [max(map(len, column)) for column in zip(LADDER_HEADER, *rows, strict=True)]
    yield Content.styled(line(ladder_headline(ladder)), "bold $text-accent")
    yield Content("")
    yield Content.styled(_columns(LADDER_HEADER, widths), "$foreground 75%")
    for row in rows:
        yield Content.styled(_columns(row, widths), _COLOURS.get(row[0], ""))


def _columns(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _details(ladder: LadderResult) -> Iterator[Content]:
    for text in ladder_details(ladder):
        yield Content(line(text))


def _plot(ladder: LadderResult) -> Iterator[Content]:
    """Of the stage with the cause, else of the last one whose values differ at all."""
    shown = ladder.cause[0] if ladder.cause is not None else None
    shown = shown or next((one for one in reversed(ladder.stages) if any(value.local for value in one.values)), None)
    if shown is None:
        return
    title, below, _ = stage_picture(shown)
    yield Content("")
    yield Content.styled(line(title), "bold")
    yield Content.styled(f"█ {LADDER_LEGEND[0]}   ● {LADDER_LEGEND[2]}   │ allowed", "$foreground 75%")
    for wrong, text in stage_in_text(shown):
        yield Content.styled(line(text), "$text-error" if wrong else "")
    yield Content.styled(line(below.removesuffix(" →")), "$foreground 75%")

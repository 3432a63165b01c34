"""The list of runs as aligned cells."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.content import Content

from exportdoctor.report import wording
from exportdoctor_tui import sanitize as inked
from exportdoctor_tui.sanitize import line

if TYPE_CHECKING:
    from exportdoctor.store.runs import RunSummary

HEADING = tuple(map(Content, ("when", "target", "state", "found", "time", "parts", "run")))
_COLOURS = {
    "finished": "$text-success",
    "running": "$text-primary",
    "cut off": "$text-warning",
    "unreadable": "$text-error",
}
_WIDEST = (11, 28, 10, 5, 12, 44, 60)


def cells(run: RunSummary) -> tuple[Content, ...]:
    """One run, a cell for each of HEADING."""
    problem = run.problem and Content.styled(line(run.problem), "$text-error")
    return (
        Content.styled(time.strftime("%m-%d %H:%M", time.localtime(run.at)), "$foreground 60%"),
        Content.styled(line(run.ref) or "?", "bold"),
        Content.styled(run.status, _COLOURS[run.status]),
        Content(inked.right(str(run.findings) if run.findings else "", 5)),
        Content.styled(inked.right(wording.duration(run.seconds) if run.seconds else "", 12), "$foreground 60%"),
        problem or Content("  ").join(_verdict(part, verdict) for part, verdict in run.parts.items()),
        Content.styled(run.run, "$foreground 60%"),
    )


def widths_of(runs: tuple[RunSummary, ...]) -> tuple[int, ...]:
    """How wide each column must be, within reason."""
    rows = [HEADING, *map(cells, runs)]
    return tuple(min(most, max(row[column].cell_length for row in rows)) for column, most in enumerate(_WIDEST))


def row(found: tuple[Content, ...], widths: tuple[int, ...]) -> Content:
    """Cells side by side."""
    return Content("  ").join(
        cell.truncate(width, ellipsis=True, pad=True) for cell, width in zip(found, widths, strict=True)
    )


def _verdict(part: str, verdict: str) -> Content:
    colour = {"passes": "$text-success", "cured": "$text-warning"}.get(verdict, "$text-error")
    return Content.styled(f"{wording.SYMBOLS[wording.VERDICT_STATUS[verdict]]} {line(part)}", colour)

"""A LadderResult as text, Markdown, JSON or a page."""

from __future__ import annotations

from html import escape

from exportdoctor.core.codec import pretty
from exportdoctor.core.protocol.numbers_ladder import LadderResult
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span, Style
from exportdoctor.report.error_plot import draw_stage
from exportdoctor.report.tables_page import render_page
from exportdoctor.report.wording.ladder import LADDER_HEADER, ladder_cells, ladder_details, ladder_headline

LADDER_FORMS = ("text", "md", "json", "html")


def render_ladder(result: LadderResult, form: str, style: Style) -> str:
    """`result` in one of LADDER_FORMS, ending with a newline."""
    match form:
        case "json":
            return pretty(result).decode()
        case "html":
            pictures = [draw_stage(one) for one in result.stages if any(value.local for value in one.values)]
            tables = [(LADDER_HEADER, ladder_cells(result))]
            return render_page(ladder_headline(result), tables, ladder_details(result), pictures)
        case "md":
            lines = ["", *(f"- {_safe(line)}" for line in ladder_details(result)), ""]
            return "\n".join([f"# {_safe(ladder_headline(result))}", "", *_bars(result), *lines])
    canvas = Canvas(style)
    canvas.paragraph(wording.plain(ladder_headline(result)), colour="title")
    colours = {"✓": "green", "✗": "red"}
    rows = [tuple(Span(wording.plain(cell), colours.get(row[0], "")) for cell in row) for row in ladder_cells(result)]
    canvas.table([tuple(Span(title, "bold") for title in LADDER_HEADER), *rows], indent=2)
    canvas.blank()
    for line in ladder_details(result):
        text = wording.plain(line)
        canvas.paragraph(text.strip(), indent=len(text) - len(text.lstrip()), hang=2)
    return canvas.text()


def _bars(result: LadderResult) -> list[str]:
    cells = [LADDER_HEADER, ("---",) * len(LADDER_HEADER), *ladder_cells(result)]
    return [f"| {' | '.join(_safe(cell) for cell in row)} |" for row in cells]


def _safe(text: str) -> str:
    """Text from a target, in which nothing is markup."""
    return escape(wording.plain(text), quote=False).replace("|", "\\|").replace("`", "'")

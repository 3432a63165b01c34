"""A LaneMatrix as text, Markdown, HTML or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from exportdoctor.core.codec import pretty
from exportdoctor.core.run.lane_matrix import LaneMatrix, MatrixRow, RetestRow
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span, Style
from exportdoctor.report.result_tables import in_markdown, markdown_tables

MATRIX_FORMS = ("text", "md", "html", "json")
_COLOURS = {"same failure": "red", "other failure": "yellow", "passes": "green", "unknown": "dim"}


def render_matrix(matrix: LaneMatrix, form: str, style: Style) -> str:
    """`matrix` in one of MATRIX_FORMS, ending with a newline."""
    match form:
        case "json":
            return pretty(matrix).decode()
        case "md":
            return _markdown(matrix)
        case "html":
            return _html(matrix)
    canvas = Canvas(style)
    head = tuple(Span(wording.plain(title), "bold") for title in ("", *matrix.lanes))
    rows = [(Span(row.name, "bold"), *(Span(c.state, _COLOURS[c.state]) for c in row.cells)) for row in matrix.rows]
    canvas.table([head, *rows])
    for line in _details(matrix):
        canvas.paragraph(wording.plain(line), hang=2)
    return canvas.text()


_RETEST_COLOURS = {"still there": "red", "changed": "yellow", "fixed": "green", "unknown": "dim"}


def render_retest(rows: Sequence[RetestRow], style: Style) -> str:
    """The findings and what became of them."""
    canvas = Canvas(style)
    lines = [
        (
            Span(row.finding, "bold"),
            Span(row.state, _RETEST_COLOURS[row.state]),
            Span(wording.plain(row.lane)),
            Span(wording.plain(_what_became(row))),
        )
        for row in rows
    ]
    canvas.table(lines)
    return canvas.text()


def _what_became(row: RetestRow) -> str:
    """The failure that is there now, or the one that was."""
    failure = row.failure.line if row.failure is not None else ""
    match row.state:
        case "fixed":
            return "; ".join(filter(None, (f"was {failure}" if failure else "", row.detail)))
        case "still there":
            return failure
    return row.detail


def _details(matrix: LaneMatrix) -> list[str]:
    """What each row's failure is, and what its cells cannot hold."""
    lines = []
    for row in matrix.rows:
        lines += [f"{row.name}: {row.failure.line}"] if row.failure is not None else []
        for lane, cell in zip(matrix.lanes, row.cells):
            lines += [f"{row.name}, {lane}: {cell.state}: {cell.detail}"] if cell.detail else []
    return lines


def _markdown(matrix: LaneMatrix) -> str:
    rows = [(row.name, *(cell.state for cell in row.cells)) for row in matrix.rows]
    details = [f"- {in_markdown(line)}" for line in _details(matrix)]
    table = markdown_tables([(("", *matrix.lanes), rows)])
    return "\n".join([f"# {in_markdown(matrix.asked)}", "", *table, "", *details, ""])


def _html(matrix: LaneMatrix) -> str:
    def cell(text: str, tag: str = "td") -> str:
        return f"<{tag}>{escape(wording.plain(text))}</{tag}>"

    def line(row: MatrixRow) -> str:
        return f"<tr>{cell(row.name, 'th')}{''.join(cell(one.state) for one in row.cells)}</tr>"

    title = escape(wording.plain(matrix.asked))
    head = "".join(cell(text, "th") for text in ("", *matrix.lanes))
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f"<title>{title}</title>\n</head>\n<body>",
            f"<h1>{title}</h1>\n<table>\n<tr>{head}</tr>",
            *(line(row) for row in matrix.rows),
            "</table>",
            *(f"<p>{escape(wording.plain(text))}</p>" for text in _details(matrix)),
            "</body>\n</html>\n",
        ]
    )

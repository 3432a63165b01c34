"""A DomainResult as text, Markdown, JSON or a page."""

from __future__ import annotations

from html import escape

from exportdoctor.core.codec import pretty
from exportdoctor.core.protocol.domain import DomainResult
from exportdoctor.core.records.size_domain import SizeDomain
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span, Style
from exportdoctor.report.tables_page import Table, render_page
from exportdoctor.report.wording.size_domains import (
    AXIS_HEADER,
    axis_rows,
    domain_details,
    domain_failure,
    domain_headline,
    trial_header,
    trial_rows,
)

_COLOURS = {"✓": "green", "✗": "red"}


def render_domain(result: DomainResult, form: str, style: Style) -> str:
    """`result` as text, md or json, ending with a newline."""
    domain = result.domain
    match form:
        case "json":
            return pretty(result).decode()
        case "html":
            tables: list[Table] = [(AXIS_HEADER, axis_rows(domain)), (trial_header(domain), trial_rows(domain))]
            return render_page(domain_headline(result), tables, [*domain_failure(result), *domain_details(domain)])
        case "md":
            lines = [f"- {_safe(line.strip())}" for line in (*domain_failure(result), *domain_details(domain))]
            return "\n".join([f"# {_safe(domain_headline(result))}", "", *domain_bars(domain), "", *lines, ""])
    canvas = Canvas(style)
    canvas.paragraph(wording.plain(domain_headline(result)), colour="title")
    for line in domain_failure(result):
        canvas.paragraph(wording.plain(line), hang=2, colour="red")
    for header, rows in ((AXIS_HEADER, axis_rows(domain)), (trial_header(domain), trial_rows(domain))):
        if rows:
            cells = [[Span(wording.plain(cell), _COLOURS.get(row[0], "")) for cell in row] for row in rows]
            canvas.table([tuple(Span(title, "bold") for title in header), *map(tuple, cells)], indent=2)
            canvas.blank()
    for line in domain_details(domain):
        text = wording.plain(line)
        canvas.paragraph(text.strip(), indent=len(text) - len(text.lstrip()), hang=2)
    return canvas.text()


def domain_bars(domain: SizeDomain) -> list[str]:
    """The tables in Markdown."""
    lines: list[str] = []
    for header, rows in (
        (AXIS_HEADER, axis_rows(domain)),
        (trial_header(domain), trial_rows(domain)),
    ):
        if rows:
            cells = [header, ("---",) * len(header), *rows]
            lines += [*(f"| {' | '.join(_safe(cell) for cell in row)} |" for row in cells), ""]
    return lines[:-1]


def _safe(text: str) -> str:
    """Text from a target, in which nothing is markup."""
    return escape(wording.plain(text), quote=False).replace("|", "\\|").replace("`", "'")

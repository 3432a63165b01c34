"""What `numbers`, `domain` and `sensitivity` found, as text, Markdown, JSON or a page; and lists for other tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from exportdoctor.core.codec import pretty
from exportdoctor.core.protocol.domain import DomainResult
from exportdoctor.core.protocol.numbers_ladder import LadderResult
from exportdoctor.core.protocol.sensitivity import SensitivityResult
from exportdoctor.core.records.size_domain import SizeDomain
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span, Style
from exportdoctor.report.error_plot import draw_sensitivity, draw_stage
from exportdoctor.report.wording.ladder import LADDER_HEADER, ladder_cells, ladder_details, ladder_headline
from exportdoctor.report.wording.sensitivities import (
    cost_header,
    cost_rows,
    sensitivity_details,
    sensitivity_headline,
)
from exportdoctor.report.wording.size_domains import (
    AXIS_HEADER,
    axis_rows,
    domain_details,
    domain_failure,
    domain_headline,
    trial_header,
    trial_rows,
)

RESULT_FORMS = ("text", "md", "json", "html")
_TOLD = 10
"""Layers that the text lists."""

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A header and rows; it is left out without rows."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #111; }
h1 { font-size: 1.2rem; } pre { white-space: pre-wrap; background: #f6f6f6; padding: 1rem; border-radius: 6px; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.2rem 0.9rem 0.2rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
.wrong { color: #b3261e; } .right { color: #1b7f3b; } svg { max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #e6e6e6; } pre { background: #22252b; } th, td { border-color: #3a3d44; }
  .wrong { color: #ff8a80; } .right { color: #7bd88f; } svg { border-radius: 6px; }
}
"""
_CLASSES = {"✗": ' class="wrong"', "✓": ' class="right"'}
_COLOURS = {"✓": "green", "✗": "red"}


def render_ladder(result: LadderResult, form: str, style: Style) -> str:
    """`result` in one of RESULT_FORMS, ending with a newline."""
    if form == "json":
        return pretty(result).decode()
    drawn = [one for one in result.stages if any(value.local for value in one.values)] if form == "html" else []
    return _Tables(
        title=ladder_headline(result),
        tables=[(LADDER_HEADER, ladder_cells(result))],
        lines=ladder_details(result),
        pictures=list(map(draw_stage, drawn)),
    ).render(form, style)


def render_domain(result: DomainResult, form: str, style: Style) -> str:
    """`result` in one of RESULT_FORMS, ending with a newline."""
    if form == "json":
        return pretty(result).decode()
    return _Tables(
        title=domain_headline(result),
        failure=domain_failure(result),
        tables=domain_tables(result.domain),
        lines=domain_details(result.domain),
    ).render(form, style)


def domain_tables(domain: SizeDomain) -> list[Table]:
    """The axes of a domain, and what was tried at their boundaries."""
    return [(AXIS_HEADER, axis_rows(domain)), (trial_header(domain), trial_rows(domain))]


def render_sensitivity(result: SensitivityResult, form: str, style: Style) -> str:
    """`result` in one of RESULT_FORMS, ending with a newline."""
    if form == "json":
        return pretty(result).decode()
    whole, brief = (cost_header(result), cost_rows(result)), (cost_header(result, brief=True), cost_rows(result, _TOLD))
    return _Tables(
        title=sensitivity_headline(result),
        tables=[brief if form == "text" else whole],
        lines=sensitivity_details(result),
        pictures=[draw_sensitivity(result)] if form == "html" else (),
    ).render(form, style)


def sensitivity_files(result: SensitivityResult) -> dict[str, str]:
    """The files of `-o`, by name: the ranking, its picture, and what quantisers take.

    `nodes_to_exclude.json` is the argument of ONNX Runtime's quantisers of that name; `modules_to_keep.json` are the
    names that a filter of torchao's `quantize_` leaves out, or for which PT2E's quantiser gets no configuration;
    `precision.json` has a dtype for each layer and node.
    """
    kept = set(result.kept)
    precision = {
        one.name: {"precision": "float32" if one.name in kept else result.to, "nodes": one.nodes}
        for one in sorted(result.layers, key=lambda one: one.depth)
    }
    return {
        "sensitivity.json": render_sensitivity(result, "json", Style()),
        "sensitivity.md": render_sensitivity(result, "md", Style()),
        "sensitivity.html": render_sensitivity(result, "html", Style()),
        "sensitivity.svg": draw_sensitivity(result),
        "nodes_to_exclude.json": json.dumps(list(result.kept_nodes), indent=2) + "\n",
        "modules_to_keep.json": json.dumps(list(result.kept), indent=2) + "\n",
        "precision.json": json.dumps(precision, indent=2) + "\n",
    }


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """A title, tables and lines. `failure` stands first, on a terminal in red; `pictures` are SVGs of ours."""

    title: str
    tables: Sequence[Table]
    lines: Iterable[str]
    failure: Iterable[str] = ()
    pictures: Sequence[str] = ()

    def render(self, form: str, style: Style) -> str:
        """As text, md or html."""
        match form:
            case "html":
                return "\n".join(self._page())
            case "md":
                lines = [f"- {in_markdown(line.strip())}" for line in (*self.failure, *self.lines)]
                return "\n".join([f"# {in_markdown(self.title)}", "", *markdown_tables(self.tables), "", *lines, ""])
        canvas = Canvas(style)
        canvas.paragraph(wording.plain(self.title), colour="title")
        for line in self.failure:
            canvas.paragraph(wording.plain(line), hang=2, colour="red")
        for header, rows in self.tables:
            if rows:
                cells = [tuple(Span(wording.plain(cell), _COLOURS.get(row[0], "")) for cell in row) for row in rows]
                canvas.table([tuple(Span(title, "bold") for title in header), *cells], indent=2)
                canvas.blank()
        for line in self.lines:
            text = wording.plain(line)
            canvas.paragraph(text.strip(), indent=len(text) - len(text.lstrip()), hang=2)
        return canvas.text()

    def _page(self) -> Iterator[str]:
        """Without scripts. Everything but the pictures is text, in which nothing is markup."""
        title = _in_page(self.title)
        yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        yield f'<meta name="viewport" content="width=device-width"><title>{title}</title><style>{_STYLE}</style>'
        yield f"</head><body><h1>{title}</h1>"
        for header, rows in self.tables:
            if rows:
                yield f"<table><tr>{''.join(f'<th>{_in_page(cell)}</th>' for cell in header)}</tr>"
                yield from (f"<tr>{''.join(map(_page_cell, row))}</tr>" for row in rows)
                yield "</table>"
        yield from self.pictures
        yield f"<pre>{_in_page(chr(10).join((*self.failure, *self.lines)))}</pre>"
        yield "</body></html>\n"


def markdown_tables(tables: Sequence[Table]) -> list[str]:
    """The lines of the tables, with an empty one between two."""
    lines: list[str] = []
    for header, rows in tables:
        if rows:
            cells = [header, ("---",) * len(header), *rows]
            lines += ["", *(f"| {' | '.join(map(in_markdown, row))} |" for row in cells)]
    return lines[1:]


def in_markdown(text: str) -> str:
    """Text from a target, in which nothing is markup."""
    return escape(wording.plain(text), quote=False).replace("|", "\\|").replace("`", "'")


def _page_cell(text: str) -> str:
    return f"<td{_CLASSES.get(text, '')}>{_in_page(text)}</td>"


def _in_page(text: str) -> str:
    return escape(wording.plain(text))

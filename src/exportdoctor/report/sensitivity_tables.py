"""A SensitivityResult as text, Markdown, JSON or a page, and the lists that other tools take."""

from __future__ import annotations

import json
from html import escape

from exportdoctor.core.codec import pretty
from exportdoctor.core.protocol.sensitivity import SensitivityResult
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span, Style
from exportdoctor.report.error_plot import draw_sensitivity
from exportdoctor.report.tables_page import render_page
from exportdoctor.report.wording.sensitivities import (
    cost_header,
    cost_rows,
    sensitivity_details,
    sensitivity_headline,
)

_TOLD = 10


def render_sensitivity(result: SensitivityResult, form: str, style: Style) -> str:
    """`result` as text, md or json, ending with a newline."""
    match form:
        case "json":
            return pretty(result).decode()
        case "html":
            tables = [(cost_header(result), cost_rows(result))]
            picture = draw_sensitivity(result)
            return render_page(sensitivity_headline(result), tables, sensitivity_details(result), [picture])
        case "md":
            header = cost_header(result)
            cells = [header, ("---",) * len(header), *cost_rows(result)]
            table = [f"| {' | '.join(_safe(cell) for cell in row)} |" for row in cells]
            lines = [f"- {_safe(line.strip())}" for line in sensitivity_details(result)]
            return "\n".join([f"# {_safe(sensitivity_headline(result))}", "", *table, "", *lines, ""])
    canvas = Canvas(style)
    canvas.paragraph(wording.plain(sensitivity_headline(result)), colour="title")
    rows = [[Span(wording.plain(cell)) for cell in row] for row in cost_rows(result, _TOLD)]
    canvas.table([tuple(Span(title, "bold") for title in cost_header(result, brief=True)), *map(tuple, rows)], indent=2)
    canvas.blank()
    for line in sensitivity_details(result):
        text = wording.plain(line)
        canvas.paragraph(text.strip(), indent=len(text) - len(text.lstrip()), hang=2)
    return canvas.text()


def sensitivity_files(result: SensitivityResult) -> dict[str, str]:
    """The files of `-o`, by name: the ranking, its picture, and what quantisers take.

    `nodes_to_exclude.json` is the argument of ONNX Runtime's quantisers of that name; `modules_to_keep.json` are the
    names that a filter of torchao's `quantize_` leaves out; `precision.json` has a dtype for each layer and node.
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
        "nodes_to_exclude.json": _list(result.kept_nodes),
        "modules_to_keep.json": _list(result.kept),
        "precision.json": json.dumps(precision, indent=2) + "\n",
    }


def _list(names: tuple[str, ...]) -> str:
    return json.dumps(list(names), indent=2) + "\n"


def _safe(text: str) -> str:
    """Text from a target, in which nothing is markup."""
    return escape(wording.plain(text), quote=False).replace("|", "\\|").replace("`", "'")

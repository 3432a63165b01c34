"""`exportdoctor runs`: what was scanned, when, and how it ended."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span
from exportdoctor.store.runs import RunSummary, list_runs

_ENDLESS = 10_000
_COLOURS = {"finished": "green", "running": "cyan", "cut off": "yellow", "unreadable": "red"}


@click.command(context_settings=CONTEXT)
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
def runs(as_json: bool) -> int:
    """List the runs, the newest first."""
    found = list_runs()
    if as_json:
        write_out(pretty(found).decode())
    elif found:
        write_out(_table(found))
    else:
        click.echo("There is no run yet. Make one with: exportdoctor scan Qwen2.5-VL-3B")
    return ExitCode.EXPORTS


def _table(found: tuple[RunSummary, ...]) -> str:
    """A line for each run: on a terminal as wide as that, elsewhere as long as it must be, for grep."""
    style = style_of(sys.stdout)
    canvas = Canvas(style if sys.stdout.isatty() else replace(style, width=_ENDLESS))
    rows = [_cells(run) for run in found]
    widths = [max(len(row[column].text) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        canvas.columns(row, widths=(*widths, 0), indent=0)
    return canvas.text()


def _cells(run: RunSummary) -> tuple[Span, ...]:
    verdicts = ", ".join(f"{part} {verdict}" for part, verdict in run.parts.items())
    return (
        Span(run.run, "bold"),
        Span(run.status, _COLOURS[run.status]),
        Span(wording.elapsed(run.seconds) if run.seconds else "", "dim"),
        Span(wording.plain(run.problem or f"{verdicts or 'no part'}; {wording.finding_count(run.findings)}")),
    )

"""`exportdoctor runs`: what was scanned, when, and how it ended."""

from __future__ import annotations

import sys

import click

from exportdoctor.cli.complete_words import complete_runs
from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.options import CONTEXT, JSON
from exportdoctor.cli.terminal import table_style, write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span
from exportdoctor.store.runs import RunSummary, delete_run, find_run, list_runs

_COLOURS = {"finished": "green", "running": "cyan", "error": "red", "cut off": "yellow", "unreadable": "red"}


@click.command(context_settings=CONTEXT)
@click.option(
    "--delete",
    "deleted",
    multiple=True,
    metavar="RUN",
    shell_complete=complete_runs,
    help="Delete this run, with its logs and scripts. Can be repeated.",
)
@JSON
def runs(deleted: tuple[str, ...], as_json: bool) -> int:
    """List the runs, newest first."""
    for path in [find_run(which) for which in deleted]:
        print_line(f"deleted {delete_run(str(path))}")
    if deleted and not as_json:
        return ExitCode.EXPORTS
    found = list_runs()
    if as_json:
        write_out(pretty(found).decode())
    elif found:
        canvas = Canvas(table_style(sys.stdout))
        canvas.table([_cells(run) for run in found])
        write_out(canvas.text())
    else:
        click.echo("There are no runs yet. Start one with: exportdoctor scan Qwen2.5-VL-3B")
    return ExitCode.EXPORTS


def _cells(run: RunSummary) -> tuple[Span, ...]:
    parts = {**run.parts, **dict.fromkeys(run.begun, "begun")}
    verdicts = ", ".join(f"{part} {verdict}" for part, verdict in parts.items()) or "no parts"
    told = f"{verdicts}; {wording.finding_count(run.findings)}"
    if run.problem:
        told = f"{run.problem}; {told}" if run.status == "cut off" else run.problem
    return (
        Span(run.run, "bold"),
        Span(run.status, _COLOURS[run.status]),
        Span(wording.duration(run.seconds) if run.seconds else "", "dim"),
        Span(wording.plain(told)),
    )

"""`exportdoctor compare`: what changed from one run to another."""

from __future__ import annotations

import sys

import click

from exportdoctor.cli.complete_words import complete_runs
from exportdoctor.cli.options import CONTEXT, JSON
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode
from exportdoctor.report.comparison import compare_runs, render_comparison
from exportdoctor.store.runs import find_run, read_run


@click.command(context_settings=CONTEXT)
@click.argument("before", metavar="RUN", shell_complete=complete_runs)
@click.argument("after", metavar="RUN", shell_complete=complete_runs)
@JSON
def compare(before: str, after: str, as_json: bool) -> int:
    """Show what changed from the first RUN to the second: package versions, verdicts, findings.

    For example: exportdoctor compare 20261121 20261122

    Exit code: 0 same verdicts and findings, 1 something changed, or a run did not end.
    """
    found = compare_runs(*(read_run(find_run(run)).state for run in (before, after)))
    write_out(pretty(found).decode() if as_json else render_comparison(found, style_of(sys.stdout)))
    return ExitCode.EXPORTS if found.same else ExitCode.FINDINGS

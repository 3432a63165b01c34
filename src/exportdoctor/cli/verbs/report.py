"""`exportdoctor report`: the report of a stored run, in any format."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from exportdoctor.cli.options import CONTEXT
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.cli.verbs.completion import complete_runs
from exportdoctor.core.errors import ExitCode
from exportdoctor.report import FORMS, render
from exportdoctor.store.atomic_write import replace_file
from exportdoctor.store.runs import find_run, read_run


@click.command(context_settings=CONTEXT)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option(
    "--format", "form", type=click.Choice(list(FORMS)), default="text", show_default=True, help="Format of the report."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write. Default: print it.",
)
def report(run: str | None, form: str, output: Path | None) -> int:
    """Print the report of RUN: a run's id, the start of it, or its folder. Default: the newest run."""
    found = read_run(find_run(run)).state.report()
    if output is None:
        write_out(render(found, form, style_of(sys.stdout)))
    else:
        replace_file(output, render(found, form).encode())
    return ExitCode.EXPORTS

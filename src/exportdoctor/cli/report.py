"""`exportdoctor report`: a stored run, told again in another way."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from exportdoctor.cli.complete import complete_runs
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.errors import ExitCode
from exportdoctor.report import FORMS, render
from exportdoctor.report.style import Style
from exportdoctor.store.disk import replace_file
from exportdoctor.store.runs import find_run, read_run


@click.command(context_settings=CONTEXT)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMS)),
    default="text",
    show_default=True,
    help="How to tell it.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write it there.")
def report(run: str | None, form: str, output: Path | None) -> int:
    """Tell RUN again: its id, the start of it, or its folder; the newest run if none is named."""
    told = read_run(find_run(run)).state.report()
    if output is None:
        write_out(render(told, form, style_of(sys.stdout)))
    else:
        replace_file(output, render(told, form, Style()).encode())
    return ExitCode.EXPORTS

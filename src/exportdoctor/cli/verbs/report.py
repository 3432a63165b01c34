"""`exportdoctor report`: the report of a stored run, in any format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from exportdoctor.cli.complete_words import complete_runs
from exportdoctor.cli.options import CONTEXT, OUTPUT
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.report import FORMS, render
from exportdoctor.report.model_explorer import render_overlay
from exportdoctor.store.atomic_write import replace_file
from exportdoctor.store.runs import StoredRun, find_run, read_run

if TYPE_CHECKING:
    from exportdoctor.report.page.run_material import RunMaterial

_OVERLAY = "model-explorer"


@click.command(context_settings=CONTEXT)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option(
    "--format",
    "form",
    type=click.Choice([*FORMS, _OVERLAY]),
    default="text",
    show_default=True,
    help="Format of the report.",
)
@OUTPUT
@click.option(
    "--against",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Another run: the page then also shows what changed since (html).",
)
@click.option(
    "--program",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.pt2",
    help="The exported program whose nodes get the verdicts (model-explorer).",
)
@click.option("--part", metavar="P", help="The part that the program is of (model-explorer).")
def report(
    run: str | None, form: str, output: Path | None, against: str | None, program: Path | None, part: str | None
) -> int:
    """Print the report of RUN: a run's id, the start of it, or its folder. Default: the newest run."""
    if (form == _OVERLAY) != (program is not None):
        raise UsageError(
            f"--format {_OVERLAY} and --program FILE.pt2 go together", hint="Write one with: exportdoctor export"
        )
    if against is not None and form != "html":
        raise UsageError("--against goes with --format html only", hint="As text: exportdoctor compare RUN RUN")
    stored = read_run(find_run(run))
    material = _gather(stored, against) if form == "html" else None
    style = style_of(sys.stdout) if output is None else None
    if program is not None:
        text = render_overlay(stored.state.report(), program, part=part)
    else:
        text = render(stored.state.report(), form, style, material=material)
    if output is None:
        write_out(text)
    else:
        replace_file(output, text.encode())
    return ExitCode.EXPORTS


def _gather(stored: StoredRun, against: str | None) -> RunMaterial:
    from exportdoctor.report.page.run_material import gather_material  # other formats need no template engine

    before = read_run(find_run(against)).state if against is not None else None
    return gather_material(stored.events, stored.path, before=before)

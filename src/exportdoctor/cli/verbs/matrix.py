"""`exportdoctor matrix`: the same question on several versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from exportdoctor.cli.complete_words import complete_runs
from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.lane_options import (
    JOBS,
    add_lane_options,
    check_target,
    find_stored,
    lane_specs,
    note_changed_sources,
    note_scripts,
    target_words,
)
from exportdoctor.cli.options import CONTEXT, OUTPUT, QUIET
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import write_result
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.report.matrix_tables import MATRIX_FORMS, render_matrix
from exportdoctor.store.runs import require_target


@click.command(context_settings=CONTEXT)
@click.argument("asked", metavar="TARGET|SCRIPT.py|RUN", shell_complete=complete_runs)
@add_lane_options
@click.option("--part", "parts", multiple=True, metavar="P", help="Scan only this part of TARGET. Can be repeated.")
@scan_option("exporter")
@click.option("--format", "form", type=click.Choice(MATRIX_FORMS), default="text", show_default=True, help="Format.")
@OUTPUT
@JOBS
@PYTHON
@QUIET
def matrix(
    asked: str,
    parts: tuple[str, ...],
    exporter: str,
    form: str,
    output: Path | None,
    jobs: int | None,
    quiet: bool,
    **given: Any,
) -> int:
    """Ask the same in this environment and on other versions: which failures are still there, which are gone?

    A RUN is asked through the verified scripts of its findings (see repro), and by its failing submodules where there
    is none. A TARGET is asked whether it exports; the numbers of its programs are not compared. A cell says: same
    failure, other failure (which), passes, unknown (why). Answers that are known already are told again, so that a
    matrix that was cut off goes on where it was.

    Exit code: 0 everything passes everywhere, 1 otherwise.
    """
    from exportdoctor.lanes.ask_lanes import ask_of_run, ask_of_script, ask_of_target, fitting_jobs
    from exportdoctor.lanes.lane import here
    from exportdoctor.lanes.lane_maker import make_lane

    script = Path(asked) if asked.endswith(".py") and Path(asked).is_file() else None
    run = None if script is not None else find_stored(asked)
    if run is not None:
        require_target(run.state.started, run.state.report().findings)
    specs = lane_specs(given)
    tell = (lambda _: None) if quiet else print_line
    if script is None and run is None:
        check_target(asked, parts)
    if run is not None and not run.state.report().findings:
        raise UsageError(f"{run.run} has no findings to ask about", hint="Give its target instead")
    lanes = [here(), *(make_lane(spec, tell) for spec in specs if spec.packages)]
    jobs = jobs or fitting_jobs(lanes)
    if script is not None:
        text = script.read_text(encoding="utf-8", errors="replace")
        found = ask_of_script(script.name, text, lanes, tell, jobs=jobs)
    elif run is not None:
        found = ask_of_run(run, lanes, tell, jobs=jobs)
        note_scripts(run)
        note_changed_sources(run)
    else:
        found = ask_of_target(target_words(asked, parts, exporter), lanes, tell, jobs=jobs)
    write_result(lambda form, style: render_matrix(found, form, style), form, output)
    return ExitCode.EXPORTS if found.passes else ExitCode.FINDINGS

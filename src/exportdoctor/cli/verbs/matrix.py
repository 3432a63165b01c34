"""`exportdoctor matrix`: the same question on several versions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from exportdoctor.cli.complete_words import complete_runs
from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.lane_options import add_lane_options, lane_specs
from exportdoctor.cli.options import CONTEXT, QUIET
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.report.matrix_tables import MATRIX_FORMS, render_matrix
from exportdoctor.store.runs import StoredRun, find_run, read_run, require_target

JOBS = click.option("--jobs", type=click.IntRange(min=1), metavar="N",
                    help="Lanes to ask in parallel. Default: as memory and processors allow.")  # fmt: skip


@click.command(context_settings=CONTEXT)
@click.argument("asked", metavar="TARGET|SCRIPT.py|RUN", shell_complete=complete_runs)
@add_lane_options
@click.option("--part", "parts", multiple=True, metavar="P", help="Scan only this part of TARGET. Can be repeated.")
@scan_option("exporter")
@click.option("--format", "form", type=click.Choice(MATRIX_FORMS), default="text", show_default=True, help="Format.")
@JOBS
@PYTHON
@QUIET
def matrix(
    asked: str, parts: tuple[str, ...], exporter: str, form: str, jobs: int | None, quiet: bool, **given: Any
) -> int:
    """Ask the same in this environment and on other versions: which failures are still there, which are gone?

    A RUN is asked through the verified scripts of its findings (see repro), and by its failing submodules where there
    is none. A cell says: same failure, other failure (which), passes, unknown (why). Answers that are known already are
    told again, so that a matrix that was cut off goes on where it was.

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
    else:
        found = ask_of_target(target_words(asked, parts, exporter), lanes, tell, jobs=jobs)
    write_out(render_matrix(found, form, style_of(sys.stdout)))
    return ExitCode.EXPORTS if found.passes else ExitCode.FINDINGS


def note_scripts(run: StoredRun) -> None:
    """Note in the heads of a run's scripts on which versions they fail and pass."""
    from exportdoctor.repro.seen_versions import note_seen_versions

    for finding in run.state.report().findings:
        if finding.repro is not None:
            note_seen_versions(run.path / finding.repro.path)


def find_stored(asked: str) -> StoredRun | None:
    """The run that this names, if it names one. Raises StoreError where that cannot be read."""
    try:
        folder = find_run(asked)
    except UsageError:
        return None
    return read_run(folder)


def target_words(asked: str, parts: tuple[str, ...], exporter: str) -> tuple[str, ...]:
    """How a scan of a target is asked for."""
    return (asked, "--exporter", exporter, *(word for part in parts for word in ("--part", part)))


def check_target(asked: str, parts: tuple[str, ...]) -> None:
    """Refuse what is no target before any lane is made."""
    from exportdoctor.core.records.target import TargetRef
    from exportdoctor.targets import resolve

    resolve(TargetRef(ref=asked, parts=parts))

"""`exportdoctor retest`: the findings of a run on the newest releases."""

from __future__ import annotations

import sys
from typing import Any

import click
from packaging.version import Version

from exportdoctor.cli.complete_words import complete_runs
from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.lane_options import JOBS, add_lane_options, lane_specs, note_changed_sources, note_scripts
from exportdoctor.cli.options import CONTEXT, JSON, QUIET
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.core.run.lane_matrix import retest_of
from exportdoctor.core.versions import installed_version
from exportdoctor.lanes.lane import LaneSpec, here
from exportdoctor.report.matrix_tables import render_retest
from exportdoctor.store.runs import find_run, read_run, require_target

_NEWEST = ("torch", "transformers")


@click.command(context_settings=CONTEXT)
@click.argument("which", metavar="[RUN]", required=False, shell_complete=complete_runs)
@add_lane_options
@JOBS
@PYTHON
@JSON
@QUIET
def retest(which: str | None, jobs: int | None, as_json: bool, quiet: bool, **given: Any) -> int:
    """Ask the findings of RUN again on the newest releases of transformers and torch: fixed, still there, or changed?

    Default: the newest run. A finding is asked by its script, or its submodule. --transformers, --torch and --with
    name releases in place of the newest; another torch than the installed one is an environment of its own. Sources of
    the run that have changed since are named: what is fixed may be fixed by that.

    Exit code: 0 all are fixed, 1 otherwise.
    """
    from exportdoctor.lanes.ask_lanes import ask_of_run, fitting_jobs
    from exportdoctor.lanes.lane_maker import make_lane
    from exportdoctor.lanes.releases import newest_release

    run = read_run(find_run(which))
    require_target(run.state.started, run.state.report().findings)
    if not run.state.report().findings:
        raise UsageError(f"{run.run} has no findings", hint="See: exportdoctor runs")
    tell = (lambda _: None) if quiet else print_line
    if any(given.values()):
        specs = lane_specs(given)
    else:
        newest = {name: one for name in _NEWEST if (one := newest_release(name))}
        newer = {name: one for name, one in newest.items() if Version(one) > Version(installed_version(name) or "0")}
        specs = [LaneSpec(packages=newest if "torch" in newer else newer)]
    lanes = [make_lane(spec, tell) if spec.packages else here() for spec in specs]
    matrix = ask_of_run(run, lanes, tell, jobs=jobs or fitting_jobs(lanes))
    note_scripts(run)
    found = retest_of(matrix, changed=note_changed_sources(run))
    write_out(pretty(found).decode() if as_json else render_retest(found, style_of(sys.stdout)))
    return ExitCode.EXPORTS if all(row.state == "fixed" for row in found) else ExitCode.FINDINGS

"""`exportdoctor repro`: a minimal, verified script for a finding; with --bundle a folder for an upstream issue."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from exportdoctor.cli.complete_words import complete_findings
from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.options import CONTEXT, OUTPUT, QUIET, FiniteRange, split_run
from exportdoctor.cli.python_option import PYTHON, follow_run
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import write_out
from exportdoctor.core.errors import ExitCode, StoreError
from exportdoctor.report import wording
from exportdoctor.store.atomic_write import make_folder, replace_file
from exportdoctor.store.runs import find_run, read_run, require_target

if TYPE_CHECKING:
    from exportdoctor.repro.candidates.budget import ReductionBudget
    from exportdoctor.repro.pipeline import ReproResult

_SECONDS, _AT_MOST, _FOR_LONG = 33.0, 180.0, 80.0


@click.command(context_settings=CONTEXT)
@click.argument("names", nargs=-1, required=True, metavar="[RUN] FINDING", shell_complete=complete_findings)
@OUTPUT
@click.option("--bundle", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Write a folder for an upstream issue: script, issue.md, log.")  # fmt: skip
@click.option("--seconds", type=FiniteRange(min=1), default=None,
              metavar="S",
              help="Time limit for reducing. Default: 33, longer on a busy machine or for a long script; "
                   "none with --probes.")  # fmt: skip
@click.option("--probes", type=click.IntRange(min=1), default=None, metavar="N",
              help="Number of candidates to try, instead of a time limit.")  # fmt: skip
@scan_option("build_timeout")
@scan_option("build_memory_mb")
@PYTHON
@QUIET
@click.pass_context
def repro(
    context: click.Context,
    names: tuple[str, ...],
    output: Path | None,
    bundle: Path | None,
    seconds: float | None,
    probes: int | None,
    build_timeout: float | None,
    build_memory_mb: float | None,
    quiet: bool,
) -> int:
    """Make a minimal script that reproduces FINDING (such as F1) of RUN. Default: the newest run.

    For example: exportdoctor repro F1, or: exportdoctor repro F1 --bundle issue

    Exit code: 0 the script fails in the same way in a fresh process, 1 it does not, 2 there is no such script.
    """
    chosen, finding = split_run(names)
    from exportdoctor.process.supervise import build_limits
    from exportdoctor.repro.bundle import write_bundle
    from exportdoctor.repro.pipeline import ReproRequest, make_repro
    from exportdoctor.repro.save import other_name, save_repro
    from exportdoctor.repro.seen_versions import with_seen_versions

    run = read_run(find_run(chosen))
    require_target(run.state.started)
    if run.state.started is not None:
        follow_run(run.state.started.python, context.obj)
    for folder in filter(None, (bundle, output.parent if output is not None else None)):
        make_folder(folder)
    begun = time.monotonic()

    def show(text: str) -> None:
        if not quiet:
            print(f"{time.monotonic() - begun:6.0f}s  {text}", file=sys.stderr, flush=True)

    made_by = f"exportdoctor repro {run.run} {finding}"
    request = ReproRequest(
        run=run,
        finding=finding,
        budget=_budget(seconds, probes),
        made_by=made_by,
        building=build_limits(build_timeout, build_memory_mb) if build_timeout or build_memory_mb else None,
    )
    made = make_repro(request, show)
    made = replace(made, text=with_seen_versions(made.text))
    try:
        kept = save_repro(made, run.path)
        show(f"saved in {kept}")
        others = [kept.parent / other_name(made, number) for number in range(1, len(made.others) + 1)]
    except StoreError as error:
        others = []
        print_line(f"the script could not be saved with its run: {error.line()}")
    for note in made.notes:
        print_line(note)
    for other, path in zip(made.others, others, strict=False):
        print_line(wording.incidental_failure(other.summary(), path))
    if bundle is not None:
        write_bundle(made, run, bundle)
        show(f"bundle in {bundle}")
    if output is not None:
        try:
            replace_file(output, made.text.encode())
        except StoreError:
            write_out(made.text)
            raise
    elif bundle is None:
        write_out(made.text)
    return _verdict(made)


def _budget(seconds: float | None, probes: int | None) -> ReductionBudget:
    """With --probes there is no time limit, unless --seconds is given too."""
    from exportdoctor.repro.candidates.budget import ReductionBudget

    if probes is None:
        by_itself = ReductionBudget(seconds=_SECONDS, at_most=_AT_MOST, for_long=_FOR_LONG)
        return ReductionBudget(seconds=seconds) if seconds else by_itself
    return ReductionBudget(seconds=seconds or math.inf, candidates=probes)


def _verdict(made: ReproResult) -> int:
    if made.reduction.interrupted:
        print_line(wording.repro_interrupted())
        return ExitCode.INTERRUPTED
    if made.reduction.ended == "stopped":
        print_line(wording.repro_out_of_time(made.lines))
    if not made.sighting.verified:
        print_line(wording.repro_not_verified())
        return ExitCode.FINDINGS
    return ExitCode.EXPORTS

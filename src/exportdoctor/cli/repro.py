"""`exportdoctor repro`: a finding's minimal script, verified, on stdout or in a file; with --bundle an issue."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from exportdoctor.cli.complete import complete_runs
from exportdoctor.cli.errors import say
from exportdoctor.cli.terminal import write_out
from exportdoctor.core.errors import ExitCode, StoreError
from exportdoctor.store.disk import replace_file
from exportdoctor.store.runs import find_run, read_run

if TYPE_CHECKING:
    from exportdoctor.repro.budget import ReductionBudget
    from exportdoctor.repro.pipeline import ReproResult

_SECONDS, _AT_MOST = 33.0, 180.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, required=True, metavar="[RUN] FINDING", shell_complete=complete_runs)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write it there.")
@click.option("--bundle", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="A folder with script, issue.md and log, ready to file upstream.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=1), default=None,
              help="How long to go on reducing; 33, or more on a busy machine, unless --probes is given.")  # fmt: skip
@click.option("--probes", type=click.IntRange(min=1), default=None, metavar="N",
              help="How many candidates to try, however long that takes.")  # fmt: skip
@click.option("--quiet", "-q", is_flag=True, help="No progress on stderr.")
@click.pass_context
def repro(
    context: click.Context,
    names: tuple[str, ...],
    output: Path | None,
    bundle: Path | None,
    seconds: float | None,
    probes: int | None,
    quiet: bool,
) -> int:
    """Make the minimal script that reproduces FINDING (F1, say) of RUN, by default of the newest run.

    Exit code: 0 the script is verified to fail in the same way, 1 it is not.
    """
    if len(names) > 2:
        raise click.UsageError("Give a RUN and a FINDING, or a FINDING alone", ctx=context)
    from exportdoctor.repro.bundle import write_bundle
    from exportdoctor.repro.pipeline import ReproRequest, make_repro
    from exportdoctor.repro.save import other_name, save_repro

    run = read_run(find_run(names[0] if len(names) == 2 else None))
    begun = time.monotonic()

    def tell(text: str) -> None:
        if not quiet:
            print(f"{time.monotonic() - begun:6.0f}s  {text}", file=sys.stderr, flush=True)

    made_by = f"exportdoctor repro {run.run} {names[-1]}"
    made = make_repro(ReproRequest(run=run, finding=names[-1], budget=_budget(seconds, probes), made_by=made_by), tell)
    try:
        kept = save_repro(made, run.path)
        tell(f"saved in {kept}")
        others = [kept.parent / other_name(made, number) for number in range(1, len(made.others) + 1)]
    except StoreError as error:
        others = []
        say(f"the script is not kept with its run: {error.line()}")
    for note in made.notes:
        say(note)
    for other, path in zip(made.others, others, strict=False):
        say(f"met on the way, not a finding of this model: {other.summary()} -> {path}")
    if bundle is not None:
        write_bundle(made, run, bundle)
        tell(f"bundle in {bundle}")
    if output is not None:
        replace_file(output, made.text.encode())
    elif bundle is None:
        write_out(made.text)
    return _verdict(made)


def _budget(seconds: float | None, probes: int | None) -> ReductionBudget:
    """Where candidates are counted, time is not, unless both are asked for."""
    from exportdoctor.repro.budget import ReductionBudget

    if probes is None:
        return ReductionBudget(seconds=seconds) if seconds else ReductionBudget(seconds=_SECONDS, at_most=_AT_MOST)
    return ReductionBudget(seconds=seconds or math.inf, questions=probes)


def _verdict(made: ReproResult) -> int:
    if made.reduction.interrupted:
        say("interrupted: this is the best so far; the same command goes on from here")
        return ExitCode.INTERRUPTED
    if made.reduction.ended == "stopped":
        say(f"the time was over at {made.lines} lines: the same command goes on from here, --seconds gives it more")
    if not made.sighting.verified:
        say("NOT verified: in a fresh process this script does not fail in the same way")
        return ExitCode.FINDINGS
    return ExitCode.EXPORTS

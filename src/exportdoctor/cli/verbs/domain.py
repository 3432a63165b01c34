"""`exportdoctor domain`: the sizes at which an exported program is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from exportdoctor.cli.complete_words import complete_targets
from exportdoctor.cli.options import (
    CONTEXT,
    DEVICE,
    DTYPE,
    IMAGE_SIZE,
    INPUTS,
    OUTPUT,
    PART,
    QUIET,
    FiniteRange,
    TargetType,
    absolute_inputs,
)
from exportdoctor.cli.part_request import (
    FORM,
    SHIMS,
    WEIGHTS_OF_VALUES,
    ask_worker,
    check_file,
    existing_file,
    known_shims,
    resolve_with_values,
)
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import write_result
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.core.protocol.domain import DomainReply, DomainRequest, DomainResult
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.process.supervise import build_limits
from exportdoctor.report.result_tables import render_domain


@click.command(context_settings=CONTEXT)
@click.argument("target", type=TargetType(), metavar="TARGET|FILE.pt2", shell_complete=complete_targets)
@click.option("--against", metavar="FILE", help="An .onnx or .pt2 file of the part that is tried too, whoever made it.")
@PART
@SHIMS
@click.option(
    "--draw", "seconds", type=FiniteRange(min=0), default=10.0, show_default=True, metavar="SECONDS",
    help="How long other input sets are drawn, besides the sizes at each boundary.",
)  # fmt: skip
@FORM
@OUTPUT
@WEIGHTS_OF_VALUES
@IMAGE_SIZE
@INPUTS
@DTYPE
@DEVICE
@scan_option("build_timeout")
@scan_option("build_memory_mb")
@PYTHON
@QUIET
def domain(
    target: str,
    against: str | None,
    part: str,
    shims: str | None,
    seconds: float,
    form: str,
    output: Path | None,
    inputs: str,
    build_timeout: float | None,
    build_memory_mb: float | None,
    quiet: bool,
    **build: Any,
) -> int:
    """Find the sizes at which the exported program of TARGET is right, and what refuses the others.

    Each boundary is tried on both sides: in eager, in the program, in the program from its file, and in ONNX Runtime.
    A program from a FILE.pt2 has no eager beside it: what it takes and refuses is told.

    Exit code: 0 wherever a stage answers, it gives eager's numbers, 1 it does not, a stage cannot be made, or the part
    does not export as declared, 2 usage error, 3 the model cannot be built or run, 4 internal error.
    """
    given = check_file(against)
    if target.endswith(".pt2"):
        if given is not None:
            raise UsageError("--against goes only with a target", hint="Leave it out")
        request = DomainRequest(file=str(existing_file(target)))
    else:
        options = BuildOptions(inputs=absolute_inputs(inputs), **build)
        ref, plan = resolve_with_values(target, part, options)
        part = part or plan.parts[0]
        names, files = known_shims(target, part, shims)
        request = DomainRequest(
            target=ref, part=part, against=str(given or ""), shims=names, shim_files=files, seconds=seconds
        )
    result: DomainResult = ask_worker(
        "worker.domain.domain_server",
        request,
        DomainReply,
        quiet=quiet,
        limits=build_limits(build_timeout, build_memory_mb) if request.target is not None else None,
        part=part,
    )
    write_result(lambda form, style: render_domain(result, form, style), form, output)
    found = result.domain.holds and result.failure is None
    return ExitCode.EXPORTS if found else ExitCode.FINDINGS

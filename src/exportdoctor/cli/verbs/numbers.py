"""`exportdoctor numbers`: where wrong numbers begin between eager and ONNX Runtime."""

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
    STATIC,
    FiniteRange,
    TargetType,
    absolute_inputs,
)
from exportdoctor.cli.packages import require_packages
from exportdoctor.cli.part_request import (
    FORM,
    SHIMS,
    WEIGHTS_OF_VALUES,
    ask_worker,
    check_file,
    known_shims,
    resolve_with_values,
)
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import write_result
from exportdoctor.core.errors import ExitCode
from exportdoctor.core.protocol.numbers_ladder import LadderReply, LadderRequest, LadderResult
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.process.supervise import build_limits
from exportdoctor.report.result_tables import render_ladder


@click.command(context_settings=CONTEXT)
@click.argument("target", type=TargetType(), shell_complete=complete_targets)
@click.option("--against", metavar="FILE", help="An .onnx or .pt2 file to compare with, whoever made it.")
@PART
@SHIMS
@click.option(
    "--draw", "seconds", type=FiniteRange(min=0), default=20.0, show_default=True, metavar="SECONDS",
    help="How long input sets are drawn, besides the example, other sizes and other values.",
)  # fmt: skip
@FORM
@OUTPUT
@WEIGHTS_OF_VALUES
@IMAGE_SIZE
@INPUTS
@STATIC
@DTYPE
@DEVICE
@scan_option("build_timeout")
@scan_option("build_memory_mb")
@PYTHON
@QUIET
def numbers(
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
    """Compare eager, exported program, decomposed program, ONNX, optimised ONNX and ONNX Runtime, value by value.

    The first value that is wrong although its inputs are right is named, with its node, submodule and line.

    Exit code: 0 the numbers are eager's, 1 they are not, or a stage cannot be made, 2 usage error, 3 the model cannot
    be built or run, 4 internal error.
    """
    file = check_file(against)
    if file is None or file.suffix == ".onnx":
        require_packages(("onnx", "onnxscript", "onnxruntime"), option="numbers", extra="onnx")
    ref, plan = resolve_with_values(target, part, BuildOptions(inputs=absolute_inputs(inputs), **build))
    names, files = known_shims(target, part or plan.parts[0], shims)
    request = LadderRequest(
        target=ref,
        part=part,
        against=str(file or ""),
        shims=names,
        shim_files=files,
        seconds=seconds,
    )
    limits = build_limits(build_timeout, build_memory_mb)
    result: LadderResult = ask_worker(
        "worker.numbers.numbers_server",
        request,
        LadderReply,
        quiet=quiet,
        limits=limits,
        part=part or plan.parts[0],
    )
    write_result(lambda form, style: render_ladder(result, form, style), form, output)
    return ExitCode.EXPORTS if result.verdict in ("agrees", "agrees_but_ties") else ExitCode.FINDINGS

"""`exportdoctor numbers`: where wrong numbers begin between eager and ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from exportdoctor.cli.complete_words import complete_targets
from exportdoctor.cli.error_output import print_line
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
    absolute_inputs,
)
from exportdoctor.cli.packages import require_packages
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.errors import ExitCode, StoreError, UsageError
from exportdoctor.core.protocol.numbers_ladder import LadderReply, LadderRequest, LadderResult
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.export.ask_while_building import ask_while_building
from exportdoctor.process.supervise import Limits, build_limits
from exportdoctor.report.canvas import Style
from exportdoctor.report.result_tables import RESULT_FORMS, render_ladder
from exportdoctor.store.atomic_write import make_folder, replace_file

if TYPE_CHECKING:
    from exportdoctor.targets import Plan


SHIMS = click.option(
    "--shims",
    metavar="A+B",
    help="Shims of the export, or `none`. Default: the newest scan's prescription.",
)
FORM = click.option(
    "--format", "form", type=click.Choice(RESULT_FORMS), default="text", show_default=True, help="Format."
)
WEIGHTS_OF_VALUES = click.option(
    "--weights", default="auto", show_default=True, metavar="random|PATH", help="random, or a folder with safetensors."
)


@click.command(context_settings=CONTEXT)
@click.argument("target", shell_complete=complete_targets)
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
    request = LadderRequest(
        target=ref,
        part=part,
        against=str(file or ""),
        shims=known_shims(target, part or plan.parts[0], shims),
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
    if output is None:
        write_out(render_ladder(result, form, style_of(sys.stdout)))
    else:
        try:
            make_folder(output.parent)
            replace_file(output, render_ladder(result, form, Style()).encode())
        except StoreError:
            write_out(render_ladder(result, "text", style_of(sys.stdout)))
            raise
    return ExitCode.EXPORTS if result.verdict in ("agrees", "agrees_but_ties") else ExitCode.FINDINGS


def resolve_with_values(target: str, part: str, options: BuildOptions) -> tuple[TargetRef, Plan]:
    """The target and its plan. Raises UsageError where it has no weight values."""
    from exportdoctor.targets import resolve

    ref = TargetRef(ref=target, parts=(part,) if part else (), options=options)
    plan = resolve(ref)
    if plan.options.weights == "fake":
        raise UsageError(f"{target} has no weight values here", hint="Give --weights random, or their folder")
    return ref, plan


def known_shims(target: str, part: str, given: str | None) -> tuple[str, ...]:
    """Those that are given; else those of the newest scan of this part, none where there is no scan that cures it."""
    from exportdoctor.export.find_prescription import find_prescription

    if given is not None:
        return tuple(name.strip() for name in given.split("+") if name.strip() not in ("", "none"))
    try:
        return find_prescription(target, part)
    except UsageError:
        return ()


def check_file(against: str | None) -> Path | None:
    """The file of `--against`. Raises UsageError where there is none."""
    if against is None:
        return None
    if Path(against).suffix not in (".onnx", ".pt2"):
        raise UsageError(f"{against} does not end in .onnx or .pt2")
    return existing_file(against)


def existing_file(given: str) -> Path:
    """Its whole path. Raises UsageError where there is no such file."""
    file = Path(given).expanduser()
    if file.is_dir():
        raise UsageError(f"{given} is a folder, not a file")
    if not file.is_file():
        raise UsageError(f"There is no file {given}")
    return file.absolute()


def ask_worker(
    server: str, request: Any, replies: Any, *, quiet: bool, limits: Limits | None = None, part: str = ""
) -> Any:
    """The result of one request to a process of its own, whose progress is printed. Raises what it refuses with.

    While it builds the target and runs `part` in eager, its first two steps, it is kept within `limits`, if any.
    """

    def show(what: str) -> None:
        if not quiet:
            print_line(what)

    return ask_while_building(server, request, replies, limits, doing=show, steps=2, part=part)

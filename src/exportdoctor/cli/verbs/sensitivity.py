"""`exportdoctor sensitivity`: which layers cannot bear low precision."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from exportdoctor.cli.complete_words import complete_targets
from exportdoctor.cli.options import CONTEXT, DEVICE, IMAGE_SIZE, INPUTS, PART, QUIET, TargetType, absolute_inputs
from exportdoctor.cli.packages import require_packages
from exportdoctor.cli.part_request import (
    FORM,
    SHIMS,
    WEIGHTS_OF_VALUES,
    ask_worker,
    existing_file,
    known_shims,
    resolve_with_values,
)
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.core.protocol.sensitivity import (
    Engine,
    Lowering,
    SensitivityReply,
    SensitivityRequest,
    SensitivityResult,
)
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.process.supervise import build_limits
from exportdoctor.report.result_tables import render_sensitivity, sensitivity_files
from exportdoctor.store.atomic_write import make_folder, replace_file


class BudgetType(click.ParamType[float]):
    """A share such as 0.05, or decibels such as 26dB."""

    name = "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share."""
        text = str(value).strip().lower()
        try:
            share = 10 ** (-float(text.removesuffix("db")) / 20) if text.endswith("db") else float(text)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither a share such as 0.05 nor decibels such as 26dB", param, ctx)
        if not 0 < share < float("inf"):
            self.fail(f"{value!r} is no error that outputs may have", param, ctx)
        return share


@click.command(context_settings=CONTEXT)
@click.argument("target", type=TargetType(), metavar="TARGET|FILE.onnx", shell_complete=complete_targets)
@click.option("--to", type=click.Choice(get_args(Lowering)), required=True, help="The precision.")
@click.option(
    "--engine", type=click.Choice(get_args(Engine)), default="onnxruntime", show_default=True,
    help="What lowers: ONNX Runtime the nodes of a file, torchao the linear layers of the module, PT2E the program.",
)  # fmt: skip
@PART
@click.option(
    "--calibration", default="", metavar="DATA",
    help="Input sets: a .pt file with a list of dicts, a .npz file, or a folder of them. By default they are made.",
)  # fmt: skip
@click.option(
    "--budget", type=BudgetType(), default="0.05", show_default=True,
    help="The largest error of an output, as a share of its size or as 26dB.",
)  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Write lists and a picture.")
@SHIMS
@FORM
@WEIGHTS_OF_VALUES
@IMAGE_SIZE
@INPUTS
@DEVICE
@scan_option("build_timeout")
@scan_option("build_memory_mb")
@PYTHON
@QUIET
def sensitivity(
    target: str,
    to: Lowering,
    engine: Engine,
    part: str,
    calibration: str,
    budget: float,
    output: Path | None,
    shims: str | None,
    form: str,
    inputs: str,
    build_timeout: float | None,
    build_memory_mb: float | None,
    quiet: bool,
    **build: Any,
) -> int:
    """Lower each layer of TARGET alone and keep each alone, and find the smallest set to keep in high precision.

    With -o also written: the ranking, a picture of it, ONNX Runtime's nodes_to_exclude, the names of modules for
    torchao and PT2E, and a precision for each layer.

    Exit code: 0 with that set the outputs stay within the budget on inputs that were not used to find it, 1 they do
    not, 2 usage error, 3 the model cannot be built or run, 4 internal error.
    """
    if engine != "onnxruntime":
        require_packages(("torchao",), option=f"--engine {engine}", extra="torchao")
    else:
        require_packages(("onnx", "onnxscript", "onnxruntime"), option="sensitivity", extra="onnx")
    if calibration and not Path(calibration).expanduser().exists():
        raise UsageError(f"There is no file {calibration}")
    data = str(Path(calibration).expanduser().resolve()) if calibration else ""
    if target.endswith(".onnx"):
        if engine != "onnxruntime":
            raise UsageError(f"--engine {engine} lowers no ONNX file", hint="Give the target that the file was made of")
        request = SensitivityRequest(to=to, file=str(existing_file(target)), calibration=data, budget=budget)
    else:
        ref, plan = resolve_with_values(target, part, BuildOptions(inputs=absolute_inputs(inputs), **build))
        part = part or plan.parts[0]
        names, files = known_shims(target, part, shims)
        request = SensitivityRequest(
            to=to, target=ref, part=part, calibration=data, budget=budget, shims=names, shim_files=files, engine=engine
        )
    result: SensitivityResult = ask_worker(
        "worker.sensitivity.sensitivity_server",
        request,
        SensitivityReply,
        quiet=quiet,
        limits=build_limits(build_timeout, build_memory_mb) if request.target is not None else None,
        part=part,
    )
    try:
        if output is not None:
            result = _write(result, output)
    finally:
        write_out(render_sensitivity(result, form, style_of(sys.stdout)))
    return ExitCode.EXPORTS if result.holds else ExitCode.FINDINGS


def _write(result: SensitivityResult, folder: Path) -> SensitivityResult:
    """The result with the files that were written."""
    files = sensitivity_files(result)
    make_folder(folder)
    for name, text in files.items():
        replace_file(folder / name, text.encode())
    return msgspec.structs.replace(result, files=tuple(str(folder / name) for name in files))

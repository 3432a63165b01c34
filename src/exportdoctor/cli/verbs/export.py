"""`exportdoctor export`: writes a part as .pt2 or .onnx with the shims it needs, and compares it with eager."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from exportdoctor.cli.complete_words import complete_parts, complete_shims, complete_targets
from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.options import (
    CONTEXT,
    DEVICE,
    DTYPE,
    IMAGE_SIZE,
    INPUTS,
    QUIET,
    STATIC,
    TargetType,
    absolute_inputs,
)
from exportdoctor.cli.packages import require_packages
from exportdoctor.cli.part_request import WEIGHTS_OF_VALUES
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.core.records.target import BuildOptions, Device, DType, TargetRef
from exportdoctor.core.versions import installed_version

if TYPE_CHECKING:
    from exportdoctor.core.protocol.export import ExportRequest
    from exportdoctor.export.find_prescription import FoundShims

_NONE = "none"


@dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """The command line of an export, as click parsed it."""

    target: str
    to: Literal["pt2", "onnx"]
    output: Path | None
    part: str | None
    shims: tuple[str, ...]
    opset: int | None
    dtype: DType
    split: int
    external_data: bool
    image_input: bool
    with_cache: bool
    weights: str
    image_size: tuple[int, int] | None
    static: bool
    inputs: str
    device: Device
    build_timeout: float | None
    build_memory_mb: float | None
    quiet: bool

    @property
    def target_ref(self) -> TargetRef:
        """What to export, and how to build it."""
        options = BuildOptions(
            device=self.device,
            dtype=self.dtype,
            weights=self.weights,
            image_size=self.image_size,
            static=self.static,
            inputs=absolute_inputs(self.inputs),
        )
        return TargetRef(ref=self.target, parts=(self.part,) if self.part else (), options=options)

    @property
    def shim_files(self) -> tuple[str, ...]:
        """The Python files among `shims`."""
        return tuple(one for one in self.shims if one.endswith(".py"))

    @property
    def shim_names(self) -> tuple[str, ...] | None:
        """The shims named on the command line; None if none was."""
        named = [one for one in self.shims if not one.endswith(".py")]
        if not named:
            return None
        return tuple(name.strip() for one in named for name in one.split("+") if name.strip() not in ("", _NONE))


@click.command(context_settings=CONTEXT)
@click.argument("target", type=TargetType(), shell_complete=complete_targets)
@click.option("--to", type=click.Choice(["pt2", "onnx"]), required=True, help="File format.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="File to write. Default: PART.SUFFIX."
)
@click.option("--part", metavar="P", shell_complete=complete_parts, help="Part to export. Default: the first one.")
@click.option(
    "--shims",
    "shims",
    metavar="A+B|FILE",
    multiple=True,
    shell_complete=complete_shims,
    help="Shims to apply, or `none`; a Python file adds your own. Default: the prescription of the newest scan.",
)
@click.option("--opset", type=click.IntRange(min=7, max=30), metavar="N", help="ONNX opset. Default: torch's choice.")
@DTYPE
@click.option("--split", type=click.IntRange(min=1), default=1, metavar="N", help="Also split the ONNX file into N.")
@click.option("--external-data", is_flag=True, help="Store weights in a separate file even below 2 GB.")
@click.option("--image-input", is_flag=True, help="Let the image encoder take an image of shape N x 3 x H x W.")
@click.option(
    "--with-cache",
    is_flag=True,
    help="Export text, or the whole model, as prefill and decode, verified by generating 20 tokens greedily.",
)
@WEIGHTS_OF_VALUES
@IMAGE_SIZE
@INPUTS
@STATIC
@DEVICE
@scan_option("build_timeout")
@scan_option("build_memory_mb")
@PYTHON
@QUIET
@click.pass_context
def export(context: click.Context, /, **given: Any) -> int:
    """Export a part of TARGET with the shims it needs, and compare the file's outputs with eager.

    Also written: STEM.proof.json and STEM.proof.md (the comparison; named after the whole FILE where those of another
    file are there), and shims_for_TARGET_PART.py, which runs without exportdoctor.

    Exit code: 0 verified, 1 no file or (without --static) correct at the traced sizes only, 2 usage error, 3 the model
    cannot be built or run, 4 internal error.
    """
    from exportdoctor.export.export_part import export_part
    from exportdoctor.process.supervise import build_limits
    from exportdoctor.report import wording

    arguments = ExportArguments(**given)
    began = time.monotonic()

    def show(what: str) -> None:
        if not arguments.quiet:
            print(f"{time.monotonic() - began:6.0f}s  {what}", file=sys.stderr, flush=True)

    _check_packages(arguments)
    request, output = _read_request(arguments)
    command = shlex.join(("exportdoctor", *context.obj))
    limits = build_limits(arguments.build_timeout, arguments.build_memory_mb)
    made = export_part(request, output=output, command=command, doing=show, building=limits)
    lines = [wording.export_headline(request, made.result), *wording.export_lines(request, made.result, made.shims)]
    lines += [f"  wrote   {path}" for path in made.placed]
    if not made.result.files and output.exists():
        lines.append(wording.left_from_before(str(output)))
    text = "\n".join(lines) + "\n"
    write_out(wording.to_ascii(text) if style_of(sys.stdout).ascii else text)
    return ExitCode.EXPORTS if made.result.verdict == "proved" or made.result.fixed else ExitCode.FINDINGS


def _read_request(arguments: ExportArguments) -> tuple[ExportRequest, Path]:
    """The request and the file. Whatever can be refused without torch is refused here."""
    from exportdoctor.core.protocol.export import ExportRequest
    from exportdoctor.targets import resolve

    _refuse_combinations(arguments)
    target = arguments.target_ref
    plan = resolve(target)
    part = arguments.part or plan.parts[0]
    if plan.options.weights == "fake":
        raise UsageError(
            f"{plan.title} has no weight values here, so there is nothing to save",
            hint="Give --weights random, or the folder with its *.safetensors files",
        )
    output = _output(arguments, part)
    names, files = _shims(arguments, part)
    request = ExportRequest(
        target=msgspec.structs.replace(target, parts=(part,)),
        part=part,
        to=arguments.to,
        folder="",
        stem=output.name.removesuffix(f".{arguments.to}"),
        shims=names,
        shim_files=files,
        opset=arguments.opset or 0,
        external_data=arguments.external_data,
        split=arguments.split,
        image_input=arguments.image_input,
        cache=arguments.with_cache,
    )
    return request, output


def _output(arguments: ExportArguments, part: str) -> Path:
    suffix = f".{arguments.to}"
    output = arguments.output or Path(f"{part}{suffix}")
    if output.suffix != suffix:
        raise UsageError(f"{output} does not end in {suffix}", hint=f"--to {arguments.to} writes {suffix} files")
    return output


def _shims(arguments: ExportArguments, part: str) -> FoundShims:
    """The shims named on the command line, else those of the prescription; checked to exist, fit and go together."""
    from exportdoctor.engine.shim_files import check_shim_files
    from exportdoctor.export.find_prescription import FoundShims, find_prescription
    from exportdoctor.shims import find, find_conflict, installed_versions

    found = FoundShims(arguments.shim_names or ())
    if arguments.shim_names is None:
        found = find_prescription(arguments.target, part)
    found = FoundShims(found.names, arguments.shim_files or found.files)
    check_shim_files(found.files)
    versions = installed_versions()
    # the axes of static-dim:AXIS are known when the part is built
    static = [name for name in found.names if name.startswith("static-dim:")]
    shims = [find(name, files=found.files) for name in found.names if name not in static]
    for shim in shims:
        if (reason := shim.fits(versions)) is not None:
            raise UsageError(f"The shim {shim.id} does not fit what is installed: {reason}", hint="Leave it out")
    if clash := find_conflict(shims, static):
        raise UsageError(f"The shims {' and '.join(clash)} cannot be combined", hint="Leave one of them out")
    return found


def _refuse_combinations(arguments: ExportArguments) -> None:
    onnx_only = {
        "--opset": arguments.opset is not None,
        "--split": arguments.split > 1,
        "--external-data": arguments.external_data,
    }
    wrong = [name for name, given in onnx_only.items() if given]
    if arguments.to != "onnx" and wrong:
        raise UsageError(f"{wrong[0]} goes only with --to onnx", hint="Leave it out")
    if arguments.with_cache and (arguments.split > 1 or arguments.image_input):
        raise UsageError(
            "--with-cache writes two files, prefill and decode", hint="Leave out --split and --image-input"
        )


def _check_packages(arguments: ExportArguments) -> None:
    """Refuse --to onnx if its packages are missing, before anything is built."""
    if arguments.to != "onnx":
        return
    extra = "gpu" if arguments.device == "cuda" else "onnx"
    require_packages(("onnx", "onnxscript", "onnxruntime"), option="--to onnx", extra=extra)
    if installed_version("onnxruntime") and installed_version("onnxruntime-gpu"):
        remedy = 'pip uninstall onnxruntime onnxruntime-gpu; pip install "exportdoctor[onnx]" (or [gpu])'
        message = "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files"
        if arguments.device == "cuda":
            raise UsageError(message, hint=f"Keep one: {remedy}")
        print_line(f"{message}. Keep one: {remedy}")

"""`exportdoctor export`: a part as .pt2 or .onnx, with the shims it needs, the numbers that prove it, and its cure."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from exportdoctor.cli.complete import complete_targets
from exportdoctor.cli.errors import say
from exportdoctor.cli.image_size import ImageSizeType
from exportdoctor.cli.interruption import Interruption
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.core.target import BuildOptions, TargetRef

_SUFFIX = {"pt2": ".pt2", "onnx": ".onnx"}
_NONE = "none"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target", shell_complete=complete_targets)
@click.option("--to", type=click.Choice(["pt2", "onnx"]), required=True, help="The file's format.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="The file; default: PART.SUFFIX.")
@click.option("--part", metavar="P", help="The part to export; default: the target's first.")
@click.option(
    "--shims",
    "shims",
    metavar="A+B|FILE",
    multiple=True,
    help="These shims, or `none`; a Python file adds your own. Default: what the newest scan prescribes.",
)
@click.option(
    "--opset", type=click.IntRange(min=7, max=30), metavar="N", help="The ONNX opset; default: torch's choice."
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "float16", "bfloat16"]),
    default="auto",
    show_default=True,
    help="The weights' dtype.",
)
@click.option("--split", type=click.IntRange(min=1), default=1, metavar="N", help="Also cut the ONNX file into N.")
@click.option("--external-data", is_flag=True, help="Weights in a file of their own, also below 2 GB.")
@click.option("--image-input", is_flag=True, help="The image encoder takes a plain image, N x 3 x H x W.")
@click.option("--with-cache", is_flag=True, help="Text as two files, prefill and decode, proved by 20 greedy tokens.")
@click.option(
    "--weights",
    default="auto",
    show_default=True,
    metavar="random|PATH",
    help="Random numbers, or a folder with safetensors.",
)
@click.option("--image-size", type=ImageSizeType(), metavar="HxW", help="The example image, in pixels.")
@click.option("--static", is_flag=True, help="Fix every size; the default keeps batch, length and patches dynamic.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where the model lives.",
)
@click.option("--quiet", "-q", is_flag=True, help="No progress on stderr.")
@click.pass_context
def export(context: click.Context, /, **given: Any) -> int:
    """Export a part of TARGET under the shims that it needs, and prove the file against eager.

    Beside FILE come its proof (FILE.proof.json and .md) and shims_for_TARGET_PART.py, which needs no exportdoctor.

    Exit code: 0 proved, 1 the file is right at some sizes only, or there is none, 2 usage, 3 the target does not
    build or run, 4 our own fault.
    """
    from exportdoctor.export.export_part import export_part
    from exportdoctor.export.summary import headline, lines_of, plain

    begun = time.monotonic()

    def doing(what: str) -> None:
        if not given["quiet"]:
            print(f"{time.monotonic() - begun:6.0f}s  {what}", file=sys.stderr, flush=True)

    _check_packages(given)
    order, output = _order(given)
    command = shlex.join(("exportdoctor", *context.obj))
    with Interruption():
        made = export_part(order, output=output, command=command, doing=doing)
    lines = [headline(order, made.handed), *lines_of(order, made.handed, made.shims)]
    lines += [f"  wrote   {path}" for path in made.placed]
    text = "\n".join(lines) + "\n"
    write_out(plain(text) if style_of(sys.stdout).ascii else text)
    return ExitCode.EXPORTS if made.handed.verdict == "proved" else ExitCode.FINDINGS


def _order(given: dict[str, Any]) -> tuple[Any, Path]:
    """The order and the file. Everything that can be refused without torch is refused here."""
    from exportdoctor.core.protocol.export import Order
    from exportdoctor.targets import resolve

    _refuse_combinations(given)
    target = _target(given)
    plan = resolve(target)
    part = given["part"] or plan.parts[0]
    if plan.options.weights == "fake":
        raise UsageError(
            f"{plan.title} has weights without values here: there is nothing to save",
            hint="Give --weights random, or the folder with its *.safetensors; or export its tiny twin",
        )
    output = _output(given, part)
    target = msgspec.structs.replace(target, parts=(part,))
    order = Order(
        target=target,
        part=part,
        to=given["to"],
        folder="",
        stem=output.name.removesuffix(_SUFFIX[given["to"]]),
        shims=_shims(given, target.ref, part),
        shim_files=_files(given),
        opset=given["opset"] or 0,
        external_data=given["external_data"],
        split=given["split"],
        image_input=given["image_input"],
        cache=given["with_cache"],
    )
    return order, output


def _target(given: dict[str, Any]) -> TargetRef:
    weights, ref = given["weights"], given["target"]
    if weights == "auto" and Path(ref).is_dir() and any(Path(ref).glob("*.safetensors")):
        weights = ref  # a checkpoint's folder brings its weights
    options = BuildOptions(
        device=given["device"],
        dtype=given["dtype"],
        weights=weights,
        image_size=given["image_size"],
        static=given["static"],
    )
    return TargetRef(ref=ref, parts=(given["part"],) if given["part"] else (), options=options)


def _output(given: dict[str, Any], part: str) -> Path:
    suffix = _SUFFIX[given["to"]]
    output: Path = given["output"] or Path(f"{part}{suffix}")
    if output.suffix != suffix:
        raise UsageError(f"{output} does not end in {suffix}", hint=f"--to {given['to']} writes {suffix} files")
    return output


def _shims(given: dict[str, Any], ref: str, part: str) -> tuple[str, ...]:
    """Those asked for, else those prescribed; checked to exist, to fit and to go together."""
    asked, files = _names(given), _files(given)
    from exportdoctor.export.find_prescription import find_prescription
    from exportdoctor.shims import find, installed_versions
    from exportdoctor.shims.composing import conflict

    names = find_prescription(ref, part) if asked is None else asked
    versions = installed_versions()
    for place, name in enumerate(names):
        if name.startswith("static-dim:"):
            continue  # its axes are known when the part is built
        shim = find(name, files=files)
        reason = shim.fits(versions)
        if reason is not None:
            raise UsageError(f"The shim {name} does not fit what is installed: {reason}", hint="Leave it out")
        other = next(
            (one for at, one in enumerate(names) if at != place and (one == name or conflict(shim, one))), None
        )
        if other is not None:
            raise UsageError(f"The shims {name} and {other} can't be applied together", hint="Leave one of them out")
    return names


def _names(given: dict[str, Any]) -> tuple[str, ...] | None:
    """The shims named on the command line; None where none was."""
    named = [one for one in given["shims"] if not one.endswith(".py")]
    if not named:
        return None
    return tuple(name.strip() for one in named for name in one.split("+") if name.strip() not in ("", _NONE))


def _files(given: dict[str, Any]) -> tuple[str, ...]:
    return tuple(one for one in given["shims"] if one.endswith(".py"))


def _refuse_combinations(given: dict[str, Any]) -> None:
    onnx_only = {"--opset": given["opset"], "--split": given["split"] > 1, "--external-data": given["external_data"]}
    wrong = [name for name, value in onnx_only.items() if value]
    if given["to"] != "onnx" and wrong:
        raise UsageError(f"{wrong[0]} goes with --to onnx", hint="Leave it out")
    if given["with_cache"] and (given["split"] > 1 or given["image_input"]):
        raise UsageError("--with-cache makes two files of a text part", hint="Leave out --split and --image-input")


def _check_packages(given: dict[str, Any]) -> None:
    """The packages behind --to onnx, told before anything is built."""
    if given["to"] != "onnx":
        return
    extra = "gpu" if given["device"] == "cuda" else "onnx"
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if not _can_be_imported(name)]
    if missing:
        raise UsageError(
            f"--to onnx needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f'pip install "exportdoctor[{extra}]"',
        )
    if {"onnxruntime", "onnxruntime-gpu"} <= _installed():
        remedy = 'pip uninstall onnxruntime onnxruntime-gpu; pip install "exportdoctor[onnx]" (or [gpu])'
        message = "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files"
        if given["device"] == "cuda":
            raise UsageError(message, hint=f"Keep one: {remedy}")
        say(f"{message}: keep one: {remedy}")


def _can_be_imported(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # somebody has forbidden it
        return False


def _installed() -> set[str]:
    found = set()
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
    return found

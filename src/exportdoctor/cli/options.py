"""Options that several verbs share, and the type of an image size."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from exportdoctor.cli.complete_words import complete_parts

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
FINDING = re.compile(r"[fF]\d+")
"""How a finding of a run is named."""


class ImageSizeType(click.ParamType[tuple[int, int]]):
    """HEIGHTxWIDTH in pixels, or one number for a square."""

    name = "HxW"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """(height, width)."""
        if isinstance(value, tuple):
            return value
        height, _, width = str(value).lower().partition("x")
        try:
            size = int(height), int(width or height)
        except ValueError:
            self.fail(f"{value!r} is not a size such as 672x672", param, ctx)
        if min(size) <= 0:
            self.fail(f"{value!r} is not a size: both numbers must be above zero", param, ctx)
        return size


class TargetType(click.ParamType[str]):
    """A model, file or program. One that begins with a dash gets a folder, or a command that names it has an option."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same, with a folder where it begins with a dash."""
        return f"./{value}" if str(value).startswith("-") else str(value)


class DeviceType(click.ParamType[str]):
    """`auto`, `cpu`, `cuda`, or one GPU by its number."""

    name = "auto|cpu|cuda|cuda:N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same, checked."""
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", str(value)):
            self.fail(f"{value!r} is none of auto, cpu, cuda, cuda:0, cuda:1, ...", param, ctx)
        return str(value)


class FiniteRange(click.FloatRange):
    """A range of numbers, among which neither `nan`, which compares with nothing, nor `inf` are."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The same, checked."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class OutFolderType(click.Path):
    """A folder to write into. An empty name, such as that of an unset variable, is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The same, checked."""
        if value == "":
            self.fail("the name is empty; give a folder, . for this one", param, ctx)
        return super().convert(value, param, ctx)


def refuse_empty(context: click.Context, option: click.Parameter, value: str) -> str:
    """The value of a file's option, which is not an empty string unless it was not given."""
    if value == "" and context.get_parameter_source(option.name or "") is not ParameterSource.DEFAULT:
        raise click.BadParameter("the name is empty", ctx=context, param=option)
    return value


def absolute_inputs(given: str) -> str:
    """What `--inputs` says, with the file's whole path: a run may be continued from another folder."""
    return os.path.abspath(os.path.expanduser(given)) if given else ""


DEVICE = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Device of the model.",
)
SCAN_DEVICE = click.option(
    "--device",
    type=DeviceType(),
    default="auto",
    show_default=True,
    help="Device of the model; cuda uses every GPU. Without one, cuda finds tensors on different devices.",
)
DTYPE = click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "float16", "bfloat16"]),
    default="auto",
    show_default=True,
    help="Dtype of the weights.",
)
WEIGHTS = click.option(
    "--weights",
    default="fake",
    show_default=True,
    metavar="fake|random|PATH",
    help="fake (shapes only), random, or a folder with safetensors files.",
)
PARTS = click.option(
    "--part",
    "parts",
    multiple=True,
    metavar="P",
    shell_complete=complete_parts,
    help="Only this part. Can be repeated.",
)
IMAGE_SIZE = click.option(
    "--image-size", type=ImageSizeType(), metavar="HxW", help="Size of the example image, in pixels."
)
INPUTS = click.option(
    "--inputs",
    default="",
    metavar="FILE",
    callback=refuse_empty,
    help="Inputs of the whole model: FILE.py:FUNCTION, whose function may take the model, FILE.pt or FILE.safetensors. "
    "By default they are made.",
)
STATIC = click.option(
    "--static",
    is_flag=True,
    help="Fix all sizes. By default batch size, sequence length and number of patches are dynamic.",
)
OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    callback=lambda _context, _option, path: None if path == Path("-") else path,
    help="File to write. Default, and `-`: print it.",
)
PART = click.option(
    "--part", default="", metavar="P", shell_complete=complete_parts, help="The part. Default: the first one."
)
QUIET = click.option("--quiet", "-q", is_flag=True, help="Do not print progress.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def split_run(names: tuple[str, ...]) -> tuple[str | None, str]:
    """The run and the finding among the arguments `[RUN] FINDING`, which may also stand the other way round.

    Raises UsageError for more than two.
    """
    if len(names) > 2:
        raise click.UsageError("Give a FINDING, or a RUN and a FINDING")
    run, finding = (None, *names)[-2:]
    assert finding is not None  # click asks for one
    if run is None and os.sep in finding and os.path.isdir(finding):
        raise click.UsageError(f"{finding} is a folder: name a finding of that run too, such as F1")
    if run is not None and FINDING.fullmatch(run) and not FINDING.fullmatch(finding):
        run, finding = finding, run
    return run, finding

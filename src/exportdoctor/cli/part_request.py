"""What `numbers`, `domain` and `sensitivity` share: they ask one question of a part whose weights have values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from exportdoctor.cli.error_output import print_line
from exportdoctor.core.errors import UsageError
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.export.ask_while_building import ask_while_building
from exportdoctor.process.supervise import Limits
from exportdoctor.report.result_tables import RESULT_FORMS

if TYPE_CHECKING:
    from exportdoctor.export.find_prescription import FoundShims
    from exportdoctor.targets import Plan


SHIMS = click.option(
    "--shims",
    metavar="A+B|FILE",
    help="Shims of the export, with the Python files that define your own, or `none`. Default: the newest scan's "
    "prescription.",
)
FORM = click.option(
    "--format", "form", type=click.Choice(RESULT_FORMS), default="text", show_default=True, help="Format."
)
WEIGHTS_OF_VALUES = click.option(
    "--weights",
    default="auto",
    show_default=True,
    metavar="random|PATH",
    help="auto: those of the target's folder or preset; random; or a folder with safetensors files.",
)


def resolve_with_values(target: str, part: str, options: BuildOptions) -> tuple[TargetRef, Plan]:
    """The target and its plan. Raises UsageError where it has no weight values."""
    from exportdoctor.targets import resolve

    ref = TargetRef(ref=target, parts=(part,) if part else (), options=options)
    plan = resolve(ref)
    if plan.options.weights == "fake":
        raise UsageError(f"{target} has no weight values here", hint="Give --weights random, or their folder")
    return ref, plan


def known_shims(target: str, part: str, given: str | None) -> FoundShims:
    """Those that are given, of which a name with .py is a file; else those of the newest scan of this part, none where
    there is no scan that cures it. Raises UsageError for a file that cannot be imported."""
    from exportdoctor.engine.shim_files import check_shim_files
    from exportdoctor.export.find_prescription import FoundShims, find_prescription

    if given is None:
        try:
            found = find_prescription(target, part)
        except UsageError:
            return FoundShims()
    else:
        names = [name.strip() for name in given.split("+") if name.strip() not in ("", "none")]
        files = tuple(os.path.abspath(name) for name in names if name.endswith(".py"))
        found = FoundShims(tuple(name for name in names if not name.endswith(".py")), files)
    check_shim_files(found.files)
    return found


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

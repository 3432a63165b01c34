"""`exportdoctor scan`: the options of a scan, as values for `run_scan`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from exportdoctor.cli.complete_words import complete_runs, complete_targets
from exportdoctor.cli.options import (
    CONTEXT,
    DTYPE,
    IMAGE_SIZE,
    INPUTS,
    JSON,
    PARTS,
    QUIET,
    SCAN_DEVICE,
    STATIC,
    WEIGHTS,
    OutFolderType,
    TargetType,
    absolute_inputs,
)
from exportdoctor.cli.packages import PACKAGES_OF, require_packages
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.scan_flags import add_scan_options, pop_scan_options
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.errors import StoreError, UsageError
from exportdoctor.core.records.target import BuildOptions, Device, DType, TargetRef
from exportdoctor.core.scan_options import OPTIONS, ScanOptions
from exportdoctor.report import FORMS

if TYPE_CHECKING:
    from exportdoctor.cli.baseline_check import FailOn

_MOST_JOBS = 4  # each attempt holds the target's graph: more of them cost memory and gain little
# the options that --resume accepts; all others are those of the run
_OF_A_RESUMED_RUN = {
    "resume",
    "python",
    "as_json",
    "form",
    "baseline",
    "update_baseline",
    "fail_on",
    "quiet",
    "tui",
} | {n for n, one in OPTIONS.items() if not one.changes_result}


@dataclass(frozen=True, kw_only=True)
class ScanArguments:
    """The command line of a scan, as click parsed it."""

    target: str | None
    parts: tuple[str, ...]
    device: Device
    dtype: DType
    weights: str
    image_size: tuple[int, int] | None
    static: bool
    inputs: str
    out: Path | None
    resume: str | None
    as_json: bool
    form: str
    baseline: Path | None
    update_baseline: bool
    fail_on: FailOn | None
    quiet: bool
    tui: bool
    scan_options: dict[str, Any]

    @property
    def target_ref(self) -> TargetRef:
        """What to scan, and how to build it."""
        return TargetRef(
            ref=self.target or "",
            parts=self.parts,
            options=BuildOptions(
                device=self.device,
                dtype=self.dtype,
                weights=self.weights,
                image_size=self.image_size,
                static=self.static,
                inputs=absolute_inputs(self.inputs),
            ),
        )

    @property
    def options(self) -> ScanOptions:
        """How to scan it."""
        given = {"jobs": min(_MOST_JOBS, _cores()), **self.scan_options}
        given["shim_files"] = tuple(os.path.abspath(file) for file in given.get("shim_files", ()))
        return ScanOptions(**given)

    @property
    def limits(self) -> dict[str, Any]:
        """The ScanOptions that a resumed run takes from this command line, where they are given."""
        return {name: value for name, value in self.scan_options.items() if not OPTIONS[name].changes_result}


class ScanCommand(click.Command):
    """`{presets}` in its help becomes the names of the presets, which are read only when the help is shown."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help text."""
        from exportdoctor.targets import preset_names

        names = ", ".join(name for name in preset_names() if not name.endswith("-tiny"))
        self.help = (self.help or "").replace("{presets}", names)
        super().format_help_text(ctx, formatter)


@click.command(cls=ScanCommand, context_settings=CONTEXT)
@click.argument("target", type=TargetType(), required=False, shell_complete=complete_targets)
@PARTS
@SCAN_DEVICE
@DTYPE
@WEIGHTS
@IMAGE_SIZE
@INPUTS
@STATIC
@add_scan_options
@click.option("--out", type=OutFolderType(), metavar="DIR", help="Folder for this run.")
@click.option(
    "--resume",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Continue a run that was cut off, reusing its results.",
)
@PYTHON
@JSON
@click.option(
    "--format", "form", type=click.Choice(list(FORMS)), default="text", show_default=True, help="Format of the report."
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Known failures; what is new, changed or fixed beside them is printed.",
)
@click.option("--update-baseline", is_flag=True, help="Write the failures of this scan into the baseline.")
@click.option(
    "--fail-on",
    type=click.Choice(["new", "any", "never"]),
    help="Which findings give exit code 1. Default: any; with --baseline new.",
)
@QUIET
@click.option("--tui", is_flag=True, help="Show the scan in the terminal interface.")
@click.pass_context
def scan(context: click.Context, /, **given: Any) -> int:
    """Find which submodules of TARGET fail to export, where and why.

    TARGET is a preset ({presets}), a folder with config.json, a hub id,
    or file.py:factory, a callable that returns (module, args[, kwargs[, dynamic_shapes]]).

    Exit code: 0 exports as is, 1 findings, 2 usage error, 3 the model cannot be built or run,
    4 internal error, 130 interrupted.
    """
    arguments = ScanArguments(scan_options=pop_scan_options(given), **given)
    if not arguments.target and arguments.resume is None:
        raise click.UsageError("A TARGET is missing: a preset, a folder, a hub id or file.py:factory", ctx=context)
    if arguments.resume is not None:
        _refuse_other_options(context)
    if arguments.tui:
        return _open_tui(context, arguments)
    from exportdoctor.cli.baseline_check import BaselineCheck
    from exportdoctor.cli.follow_scan import OutputOptions
    from exportdoctor.cli.run_scan import resume, start

    if arguments.baseline is None and (arguments.update_baseline or arguments.fail_on == "new"):
        raise click.UsageError("--update-baseline and --fail-on new need --baseline FILE", ctx=context)
    check = BaselineCheck(
        path=arguments.baseline,
        fail_on=arguments.fail_on,
        update=arguments.update_baseline,
        of_some_parts=bool(arguments.parts) or arguments.resume is not None,
    )
    check.read()
    options = arguments.options
    if options.shim_files:
        from exportdoctor.engine.shim_files import check_shim_files

        check_shim_files(options.shim_files)
    require_packages(PACKAGES_OF.get(options.to, ()), option=f"--to {options.to}", extra="onnx")
    output = OutputOptions(form="json" if arguments.as_json else arguments.form, quiet=arguments.quiet, check=check)
    if arguments.resume is not None:
        return resume(arguments.resume, output=output, limits=arguments.limits)
    command = ("exportdoctor", *context.obj)
    return start(arguments.target_ref, options, output=output, out=arguments.out, command=command)


def _open_tui(context: click.Context, arguments: ScanArguments) -> int:
    """Let the terminal interface start this scan; wrong requests are refused here."""
    from exportdoctor.cli.verbs.tui import find_interface
    from exportdoctor.report.plain_text import render_summary
    from exportdoctor.store.places import new_run_id, runs_root
    from exportdoctor.store.runs import find_run, read_run
    from exportdoctor.targets import resolve

    interface = find_interface()
    words = [word for word in context.obj if word != "--tui"]
    if arguments.resume is not None:
        folder = find_run(arguments.resume)
    else:
        target = arguments.target_ref
        resolve(target)
        folder = arguments.out or runs_root() / new_run_id(target.ref)
        words += ["--out", str(folder)]
    code = interface(folder, scan=(sys.executable, "-m", "exportdoctor", *words, "--quiet"))
    with suppress(StoreError):  # quit before the scan began
        report = read_run(folder).state.report()
        write_out(render_summary(report, style_of(sys.stdout)))
    return code


def _refuse_other_options(context: click.Context) -> None:
    """A resumed run keeps its target and options: results of two kinds must not mix."""
    default = click.core.ParameterSource.DEFAULT
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in _OF_A_RESUMED_RUN and context.get_parameter_source(name) not in (default, None):
            raise UsageError(
                f"{parameter.opts[0]} does not go with --resume: the run keeps its target and options",
                hint="Leave it out, or start a new scan",
            )


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""`exportdoctor scan`: the options of a scan, as values for `run_scan`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from exportdoctor.cli.complete import complete_runs, complete_targets
from exportdoctor.cli.options import CONTEXT, DEVICE, DTYPE, EXPORTER, IMAGE_SIZE, JSON, QUIET, STATIC, TIMEOUT
from exportdoctor.cli.packages import require_packages
from exportdoctor.core.errors import UsageError
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.core.target import BuildOptions, Device, DType, TargetRef

if TYPE_CHECKING:
    from exportdoctor.core.exporters import Exporter

_MOST_JOBS = 4  # each attempt holds the target's graph: more of them cost memory and gain little
_PACKAGES = {"export": (), "onnx": ("onnx", "onnxscript"), "ort": ("onnx", "onnxscript", "onnxruntime")}
# the options that --resume accepts; all others are those of the run
_OF_A_RESUMED_RUN = frozenset({"resume", "timeout", "memory", "jobs", "as_json", "quiet", "tui", "no_cache"})


@dataclass(frozen=True, kw_only=True)
class ScanArguments:
    """The command line of a scan, as click parsed it."""

    target: str | None
    parts: tuple[str, ...]
    exporter: Exporter
    to: Literal["export", "onnx", "ort"]
    device: Device
    dtype: DType
    weights: str
    image_size: tuple[int, int] | None
    static: bool
    modules: tuple[str, ...]
    exhaustive: bool
    no_cure: bool
    shim_files: tuple[str, ...]
    allow: tuple[Literal["unsound"], ...]
    timeout: float | None
    memory: float | None
    jobs: int | None
    out: Path | None
    resume: str | None
    no_cache: bool
    as_json: bool
    quiet: bool
    tui: bool

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
            ),
        )

    @property
    def options(self) -> ScanOptions:
        """How to scan it."""
        return ScanOptions(
            exporter=self.exporter,
            to=self.to,
            exhaustive=self.exhaustive,
            modules=self.modules,
            cure=not self.no_cure,
            shim_files=tuple(os.path.abspath(file) for file in self.shim_files),
            allow=self.allow,
            jobs=self.jobs or min(_MOST_JOBS, _cores()),
            timeout=self.timeout,
            memory_mb=self.memory,
            use_cache=not self.no_cache,
        )

    @property
    def limits(self) -> dict[str, Any]:
        """The ScanOptions that a resumed run takes from this command line, where they are given."""
        limits = {"jobs": self.jobs, "timeout": self.timeout, "memory_mb": self.memory}
        limits["use_cache"] = False if self.no_cache else None
        return {name: value for name, value in limits.items() if value is not None}


@click.command(context_settings=CONTEXT)
@click.argument("target", required=False, shell_complete=complete_targets)
@click.option("--part", "parts", multiple=True, metavar="P", help="Scan only this part. Can be repeated.")
@EXPORTER
@click.option(
    "--to",
    type=click.Choice(["export", "onnx", "ort"]),
    default="export",
    show_default=True,
    help="How far to go: export only, also translate to ONNX, or also run in ONNX Runtime.",
)
@DEVICE
@DTYPE
@click.option(
    "--weights",
    default="fake",
    show_default=True,
    metavar="fake|random|PATH",
    help="fake (shapes only), random, or a folder with safetensors files.",
)
@IMAGE_SIZE
@STATIC
@click.option(
    "--module",
    "modules",
    multiple=True,
    metavar="FQN",
    help="Export this submodule instead of the whole part. Can be repeated.",
)
@click.option(
    "--exhaustive", is_flag=True, help="Export every distinct submodule, not only those below a failing parent."
)
@click.option("--no-cure", is_flag=True, help="Do not search for shims.")
@click.option(
    "--shims", "shim_files", metavar="FILE", multiple=True, help="Python file with your own shims. Can be repeated."
)
@click.option(
    "--allow",
    multiple=True,
    type=click.Choice(["unsound"]),
    help="Also try shims that only silence a guard or an assertion.",
)
@TIMEOUT
@click.option(
    "--memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MiB",
    help="Memory limit for one export. Default: a share of the free memory.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Number of exports to run in parallel.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder for this run.")
@click.option(
    "--resume",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Continue a run that was cut off, reusing its results.",
)
@click.option("--no-cache", is_flag=True, help="Do not reuse results of earlier runs.")
@JSON
@QUIET
@click.option("--tui", is_flag=True, help="Show the scan in the terminal interface.")
@click.pass_context
def scan(context: click.Context, /, **given: Any) -> int:
    """Find which submodules of TARGET fail to export, where and why.

    TARGET is a preset (Qwen2.5-VL-3B, -7B, -32B, -72B), a folder with config.json, a hub id,
    or file.py:factory, a callable that returns (module, args[, kwargs[, dynamic_shapes]]).

    Exit code: 0 exports as is, 1 findings, 2 usage error, 3 the model cannot be built or run,
    4 internal error, 130 interrupted.
    """
    arguments = ScanArguments(**given)
    if not arguments.target and arguments.resume is None:
        raise click.UsageError("A TARGET is missing: a preset, a folder, a hub id or file.py:factory", ctx=context)
    if arguments.resume is not None:
        _refuse_other_options(context)
    if arguments.tui:
        return _open_tui(context, arguments)
    from exportdoctor.cli.follow_scan import OutputOptions
    from exportdoctor.cli.run_scan import resume, start

    _check_shims(arguments.shim_files)
    require_packages(_PACKAGES[arguments.to], option=f"--to {arguments.to}", extra="onnx")
    output = OutputOptions(as_json=arguments.as_json, quiet=arguments.quiet)
    if arguments.resume is not None:
        return resume(arguments.resume, output=output, limits=arguments.limits)
    command = ("exportdoctor", *context.obj)
    return start(arguments.target_ref, arguments.options, output=output, out=arguments.out, command=command)


def _open_tui(context: click.Context, arguments: ScanArguments) -> int:
    """Let the terminal interface start this scan; wrong requests are refused here."""
    from exportdoctor.cli.tui import find_interface
    from exportdoctor.store.places import new_run_id, runs_root
    from exportdoctor.store.runs import find_run
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
    return interface(folder, scan=(sys.executable, "-m", "exportdoctor", *words, "--quiet"))


def _check_shims(files: tuple[str, ...]) -> None:
    """Refuse a file with shims that cannot be used, before anything runs."""
    if files:
        from exportdoctor.shims import registry

        registry(files)


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

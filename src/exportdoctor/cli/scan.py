"""`exportdoctor scan`: the options, as values for whoever conducts the scan."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from exportdoctor.cli.complete import complete_runs, complete_targets
from exportdoctor.cli.image_size import ImageSizeType
from exportdoctor.core.errors import UsageError
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.core.target import BuildOptions, TargetRef

_POSITIVE = click.FloatRange(min=0, min_open=True)
_MOST_JOBS = 4  # each attempt holds the target's graph: more of them cost memory and gain little
# what may be said of a run that already has its target and its way of asking
_OF_A_RESUMED_RUN = frozenset({"resume", "timeout", "memory", "jobs", "as_json", "quiet", "tui", "no_cache"})


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target", required=False, shell_complete=complete_targets)
@click.option("--part", "parts", multiple=True, metavar="P", help="Scan this part only; may be given again.")
@click.option(
    "--exporter",
    type=click.Choice(list(EXPORTERS)),
    default="export",
    show_default=True,
    help="How to export.",
)
@click.option(
    "--to",
    type=click.Choice(["export", "onnx", "ort"]),
    default="export",
    show_default=True,
    help="How far to go.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where the model lives.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "float16", "bfloat16"]),
    default="auto",
    show_default=True,
    help="The weights' dtype.",
)
@click.option(
    "--weights",
    default="fake",
    show_default=True,
    metavar="fake|random|PATH",
    help="Shapes only, random numbers, or a folder with safetensors.",
)
@click.option("--image-size", type=ImageSizeType(), metavar="HxW", help="The example image, in pixels.")
@click.option("--static", is_flag=True, help="Fix every size; the default keeps batch, length and patches dynamic.")
@click.option("--module", "modules", multiple=True, metavar="FQN", help="Ask this submodule in place of the root.")
@click.option("--exhaustive", is_flag=True, help="Ask every distinct submodule, not only where a parent fails.")
@click.option("--no-cure", is_flag=True, help="Do not look for shims.")
@click.option("--shims", "shim_files", metavar="FILE", multiple=True, help="A Python file with shims of your own.")
@click.option(
    "--allow",
    multiple=True,
    type=click.Choice(["unsound"]),
    help="Try shims that silence a guard or an assertion, too.",
)
@click.option(
    "--timeout",
    type=_POSITIVE,
    metavar="S",
    help="Seconds for one attempt; the default comes from the first, at least 60.",
)
@click.option("--memory", type=_POSITIVE, metavar="MB", help="Memory for one attempt, in MiB.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Attempts at a time.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="The run's folder.")
@click.option(
    "--resume",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Go on with a run that was cut off; asks nothing twice.",
)
@click.option("--no-cache", is_flag=True, help="Reuse no answer of an earlier run.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on stderr.")
@click.option("--tui", is_flag=True, help="Watch it in the terminal interface.")
@click.pass_context
def scan(context: click.Context, /, **given: Any) -> int:
    """Find which submodules of TARGET cannot be exported, where and why.

    TARGET is a preset (Qwen2.5-VL-3B, -7B, -32B, -72B), a folder with config.json, a hub id,
    or file.py:factory, a callable that returns (module, args[, kwargs[, dynamic_shapes]]).

    Exit code: 0 exports as it is, 1 findings, 2 usage, 3 the target does not build or run,
    4 our own fault, 130 interrupted.
    """
    if not given["target"] and given["resume"] is None:
        raise click.UsageError("A TARGET is missing: a preset, a folder, a hub id or file.py:factory", ctx=context)
    if given["resume"] is not None:
        _refuse_other_options(context)
    if given["tui"]:
        return _watch(context, given)
    from exportdoctor.cli.follow_scan import Manner
    from exportdoctor.cli.run_scan import go_on, start

    _check_shims(given["shim_files"])
    _check_packages(given["to"])
    manner = Manner(as_json=given["as_json"], quiet=given["quiet"])
    if given["resume"] is not None:
        return go_on(given["resume"], manner=manner, limits=_limits(given))
    command = ("exportdoctor", *context.obj)
    return start(_target(given), _options(given), manner=manner, out=given["out"], command=command)


def _watch(context: click.Context, given: dict[str, Any]) -> int:
    """Let the terminal interface start this scan and show it; what can be refused at once is refused here."""
    from exportdoctor.cli.tui import find_interface
    from exportdoctor.store.places import new_run_id, runs_root
    from exportdoctor.store.runs import find_run
    from exportdoctor.targets import resolve

    interface = find_interface()
    words = [word for word in context.obj if word != "--tui"]
    if given["resume"] is not None:
        folder = find_run(given["resume"])
    else:
        resolve(_target(given))
        folder = given["out"] or runs_root() / new_run_id(given["target"])
        words += ["--out", str(folder)]
    return interface(folder, scan=(sys.executable, "-m", "exportdoctor", *words, "--quiet"))


def _check_shims(files: tuple[str, ...]) -> None:
    """A user's file that cannot be used is refused before anything runs."""
    if files:
        from exportdoctor.shims import registry

        registry(files)


def _check_packages(to: str) -> None:
    """A stage whose packages are missing is refused before anything runs."""
    from importlib.util import find_spec

    needed = {"onnx": ("onnx", "onnxscript"), "ort": ("onnx", "onnxscript", "onnxruntime")}.get(to, ())
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        what = " and ".join(missing)
        raise UsageError(f"--to {to} needs {what}, which is not installed", hint="pip install 'exportdoctor[onnx]'")


def _target(given: dict[str, Any]) -> TargetRef:
    return TargetRef(
        ref=given["target"],
        parts=given["parts"],
        options=BuildOptions(
            device=given["device"],
            dtype=given["dtype"],
            weights=given["weights"],
            image_size=given["image_size"],
            static=given["static"],
        ),
    )


def _options(given: dict[str, Any]) -> ScanOptions:
    return ScanOptions(
        exporter=given["exporter"],
        to=given["to"],
        exhaustive=given["exhaustive"],
        modules=given["modules"],
        cure=not given["no_cure"],
        shim_files=tuple(os.path.abspath(file) for file in given["shim_files"]),
        allow=given["allow"],
        jobs=given["jobs"] or min(_MOST_JOBS, _cores()),
        timeout=given["timeout"],
        memory_mb=given["memory"],
        use_cache=not given["no_cache"],
    )


def _limits(given: dict[str, Any]) -> dict[str, Any]:
    """The options that a resumed run takes from this command line, where they are given."""
    limits = {"jobs": given["jobs"], "timeout": given["timeout"], "memory_mb": given["memory"]}
    limits["use_cache"] = False if given["no_cache"] else None
    return {name: value for name, value in limits.items() if value is not None}


def _refuse_other_options(context: click.Context) -> None:
    """A resumed run keeps its target and its way of asking: answers of two kinds must not mix."""
    default = click.core.ParameterSource.DEFAULT
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in _OF_A_RESUMED_RUN and context.get_parameter_source(name) not in (default, None):
            raise UsageError(
                f"{parameter.opts[0]} does not go with --resume: the run keeps its target and options",
                hint="Leave it out, or scan anew",
            )


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

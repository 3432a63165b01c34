"""`exportdoctor sweep`: many targets on a Dask cluster, and their atlas."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import click

from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.options import CONTEXT, QUIET, FiniteRange, OutFolderType
from exportdoctor.cli.packages import require_packages
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import write_out
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.protocol.model_types import MODEL_KINDS

_PACKAGES = {"onnx": ("onnx", "onnxscript"), "ort": ("onnx", "onnxscript", "onnxruntime")}
_SCAN_OPTIONS = ("exporter", "to", "search", "cure", "allow", "timeout", "memory_mb", "use_cache")


@click.command(context_settings=CONTEXT)
@click.argument("targets", nargs=-1)
@click.option(
    "--transformers",
    "kind",
    type=click.Choice(MODEL_KINDS),
    help="Also every model type of this kind that the installed transformers lists, in its default configuration.",
)
@click.option(
    "--list", "list_file", type=click.Path(path_type=Path), metavar="FILE", help="Also those in FILE, one a line."
)
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Only N of the model types, drawn with --seed.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of --sample.")
@click.option(
    "--few-layers",
    is_flag=True,
    help="Ask the model types with few layers of each kind, few experts and tokens, and all their widths: quicker. The "
    "atlas says so. A type that does not run so is asked as it is.",
)
@click.option(
    "--sizes",
    type=click.Choice(["both", "static", "dynamic"]),
    default="both",
    show_default=True,
    help="Fix all sizes, leave them dynamic, or one after the other.",
)
@scan_option("to")
@click.option(
    "--also",
    type=click.Choice(["strict", "decomposed"]),
    multiple=True,
    help="Also ask for a strict export, or to decompose the program: one more scan of each target. Can be repeated.",
)
@scan_option("exporter")
@scan_option("search")
@scan_option("cure")
@scan_option("allow")
@scan_option("timeout")
@scan_option("memory_mb")
@scan_option("use_cache")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Targets at a time. Default: one a core.")
@click.option("--scheduler", default="", metavar="ADDRESS", help="Use this Dask cluster instead of local processes.")
@click.option(
    "--target-timeout",
    type=FiniteRange(min=0, min_open=True),
    default=1800.0,
    show_default=True,
    metavar="S",
    help="Time limit for one scan of one target, in seconds.",
)
@click.option(
    "--target-memory",
    type=FiniteRange(min=0, min_open=True),
    metavar="MiB",
    help="Memory limit for one scan. Default: its share of the free memory.",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="ATLAS.json",
    help="Do not ask targets that have a row in this earlier atlas: keep the row, with its date. Can be repeated.",
)
@click.option("--against", type=click.Path(path_type=Path), metavar="ATLAS.json", help="Show first what changed since.")
@click.option("--out", type=OutFolderType(), metavar="DIR", help="Folder of the sweep; one there is continued.")
@QUIET
@click.pass_context
def sweep(context: click.Context, /, **given: Any) -> int:
    """Scan many TARGETS, and write an atlas of the answers: atlas.html, atlas.md, atlas.json.

    The same command with the same --out asks only what is left or has changed.

    Exit code: 0 all export as they are, 1 some do not, 2 usage error, 3 no target has a verdict, 4 internal error,
    130 interrupted.
    """
    require_packages(("dask", "distributed"), option="sweep", extra="sweep")
    require_packages(_PACKAGES.get(given["to"], ()), option=f"--to {given['to']}", extra="onnx")
    if not (given["targets"] or given["kind"] or given["list_file"]):
        raise click.UsageError(
            "TARGETS are missing: name some, or give --transformers KIND or --list FILE", ctx=context
        )
    return _sweep(given, command=shlex.join(("exportdoctor", *context.obj)))


def _sweep(given: dict[str, Any], *, command: str) -> int:
    from exportdoctor.core.scan_options import DEFAULTS, ScanOptions, option_words
    from exportdoctor.report.wording.atlas import rows_left_out, sweep_progress, sweep_summary
    from exportdoctor.store.places import data_home, new_run_id
    from exportdoctor.sweep.cluster import default_memory_mb
    from exportdoctor.sweep.run_sweep import (
        SweepRequest,
        ask_what_is_left,
        default_jobs,
        names_in_atlas,
        read_atlas,
        read_kept_rows,
        write_atlas,
    )
    from exportdoctor.sweep.sweep_targets import find_model_types, make_tasks, name_targets, read_list

    _check_columns(given)
    if given["few_layers"] and not given["kind"]:
        raise UsageError("--few-layers is about model types", hint="Name their kind with --transformers")
    if given["against"] is not None:
        read_atlas(given["against"])  # before any work
    folder = given["out"] or data_home() / "sweeps" / new_run_id("sweep")
    _check_folder(folder)
    refs = [*given["targets"], *(read_list(given["list_file"]) if given["list_file"] else ())]
    targets, sampled = name_targets(refs), None
    if given["kind"]:
        types, sampled = find_model_types(
            given["kind"],
            folder / "targets",
            sample=given["sample"],
            seed=given["seed"],
            few_folder=folder / "few-layers" if given["few_layers"] else None,
        )
        taken = {target.name for target in targets}
        targets += [one for one in types if one.name not in taken]
    if not targets:
        raise UsageError("there is no target", hint="The list is empty")
    options = {name: given[name] for name in _SCAN_OPTIONS if given[name] not in (None, ())}
    options |= {name: not given[name] for name in ("search", "cure", "use_cache")}
    options["alternatives"] = not options["cure"]  # an atlas tells one cure of a cell
    jobs = given["jobs"] or default_jobs()
    memory_mb = given["target_memory"] or default_memory_mb(jobs)
    words = option_words(ScanOptions(**options, jobs=DEFAULTS["jobs"]))
    at = words.index("--jobs")
    words = (*words[:at], *words[at + 2 :])  # each scan has one, since there are as many scans
    request = SweepRequest(
        targets=tuple(targets),
        folder=folder,
        sizes=("static", "dynamic") if given["sizes"] == "both" else (given["sizes"],),
        to=given["to"],
        words=words,
        jobs=jobs,
        memory_mb=memory_mb,
        scheduler=given["scheduler"],
        command=command,
        sample=sampled,
        earlier=given["against"],
        also=tuple(dict.fromkeys(given["also"])),
        keep=given["keep"],
        few_layers=given["few_layers"],
    )
    kept = read_kept_rows(request, timeout=given["target_timeout"])
    tasks = make_tasks(
        request.targets,
        folder,
        sizes=request.sizes,
        words=words,
        timeout=given["target_timeout"],
        memory_mb=memory_mb,
        also=request.also,
    )
    begun, done = time.monotonic(), 0

    def tell(answer: Any, of: int) -> None:
        nonlocal done
        done += 1
        if not given["quiet"]:
            told = ", ".join(f"{run.folder} {run.why or run.status}" for run in answer.runs)
            print_line(sweep_progress(answer.name, told, done=done, of=of, seconds=time.monotonic() - begun))

    stopped: BaseException | None = None
    try:
        ask_what_is_left(request, [task for task in tasks if task.name not in kept.rows], tell)
    except (KeyboardInterrupt, Exception) as error:
        stopped = error
    if isinstance(stopped, UsageError) and not done:
        raise stopped
    dropped = names_in_atlas(folder) - {task.name for task in tasks}
    atlas = write_atlas(request, tasks, kept)
    write_out("".join(f"{line}\n" for line in sweep_summary(atlas)))
    if not given["quiet"]:
        print_line(f"saved in {folder}")
    if dropped:
        print_line(rows_left_out(len(dropped)))
    if stopped is not None:
        if isinstance(stopped, KeyboardInterrupt):
            print_line("interrupted. The same command with the same --out continues")
            return ExitCode.INTERRUPTED
        raise stopped
    verdicts = {cell.verdict for row in atlas.rows for cell in row.cells}
    if verdicts <= {"passes"}:
        return ExitCode.EXPORTS
    return ExitCode.TARGET if verdicts <= {"no_verdict"} else ExitCode.FINDINGS


def _check_columns(given: dict[str, Any]) -> None:
    """Refuse columns that the scan which is always made has already, or whose exporter makes no program."""
    exporter, also = EXPORTERS[given["exporter"]], given["also"]
    if "strict" in also and exporter.traces_with_dynamo:
        raise UsageError(f"--also strict asks what --exporter {given['exporter']} asks", hint="Leave out one of them")
    if "decomposed" in also and given["to"] == "decomposed":
        raise UsageError("--also decomposed asks what --to decomposed asks", hint="Leave out one of them")
    if "decomposed" in also and not exporter.makes_program:
        raise UsageError(f"--exporter {given['exporter']} makes no program that could be decomposed")


def _check_folder(folder: Path) -> None:
    """A folder that is not a sweep's is refused: its files would be taken for ours."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder", hint="Choose another folder with --out")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / n).exists() for n in ("runs", "targets")):
        raise UsageError(f"{folder} holds other files", hint="Choose another folder with --out")

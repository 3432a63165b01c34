"""`exportdoctor sweep`: many targets on a Dask cluster, and their atlas."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.options import CONTEXT, QUIET, FiniteRange, OutFolderType
from exportdoctor.cli.packages import PACKAGES_OF, require_packages
from exportdoctor.cli.scan_flags import pop_scan_options, scan_option
from exportdoctor.cli.terminal import write_out
from exportdoctor.core.errors import ExitCode, StoreError, UsageError
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.protocol.model_types import MODEL_KINDS
from exportdoctor.store.lock import LOCK

if TYPE_CHECKING:
    from exportdoctor.core.run.atlas import Also, Atlas, SampleFact
    from exportdoctor.core.scan_options import ScanOptions
    from exportdoctor.sweep.run_sweep import SweepRequest
    from exportdoctor.sweep.sweep_targets import SweepTarget
    from exportdoctor.sweep.target_task import SweepAnswer, SweepTask

_SCAN_OPTIONS = ("to", "exporter", "search", "cure", "allow", "timeout", "memory_mb", "use_cache")


@dataclass(frozen=True, kw_only=True)
class SweepArguments:
    """The command line of a sweep; `scan_options` are those of each scan that were given, as fields of ScanOptions."""

    scan_options: dict[str, Any]
    targets: tuple[str, ...]
    kind: str | None
    list_file: Path | None
    sample: int | None
    seed: int
    few_layers: bool
    sizes: Literal["both", "static", "dynamic"]
    also: tuple[Also, ...]
    jobs: int | None
    scheduler: str
    target_timeout: float
    target_memory: float | None
    keep: tuple[Path, ...]
    against: Path | None
    out: Path | None
    quiet: bool

    def check(self) -> None:
        """Raise UsageError for what does not go together, and for an earlier atlas that cannot be read."""
        from exportdoctor.sweep.run_sweep import read_atlas

        self._check_columns()
        if self.few_layers and not self.kind:
            raise UsageError("--few-layers is about model types", hint="Name their kind with --transformers")
        if self.against is not None:
            read_atlas(self.against)  # before any work

    def request(self, folder: Path, *, command: str) -> SweepRequest:
        """The sweep of these targets in `folder`. Those of --transformers are written there."""
        from exportdoctor.sweep.cluster import default_memory_mb
        from exportdoctor.sweep.run_sweep import SweepRequest, default_jobs

        targets, sampled = self._find_targets(folder)
        jobs = self.jobs or default_jobs()
        return SweepRequest(
            targets=targets,
            folder=folder,
            sizes=("static", "dynamic") if self.sizes == "both" else (self.sizes,),
            to=self.scan.to,
            words=self.words,
            jobs=jobs,
            memory_mb=self.target_memory or default_memory_mb(jobs),
            scheduler=self.scheduler,
            command=command,
            sample=sampled,
            earlier=self.against,
            also=tuple(dict.fromkeys(self.also)),
            keep=self.keep,
            few_layers=self.few_layers,
        )

    @property
    def scan(self) -> ScanOptions:
        """The options of each scan. An atlas tells one cure of a cell."""
        from msgspec.structs import replace

        from exportdoctor.core.scan_options import ScanOptions

        options = ScanOptions(**self.scan_options)
        return replace(options, alternatives=not options.cure)

    @property
    def words(self) -> tuple[str, ...]:
        """They on a command line. Each scan has one job, since there are as many scans."""
        from exportdoctor.core.scan_options import option_words

        words = option_words(self.scan)
        at = words.index("--jobs")
        return (*words[:at], *words[at + 2 :])

    def _find_targets(self, folder: Path) -> tuple[tuple[SweepTarget, ...], SampleFact | None]:
        """Those that are named or listed, then the model types; and of how many these were drawn."""
        from exportdoctor.sweep.sweep_targets import find_model_types, name_targets, read_list

        refs = [*self.targets, *(read_list(self.list_file) if self.list_file else ())]
        targets, sampled = name_targets(refs), None
        if self.kind:
            types, sampled = find_model_types(
                self.kind,
                folder / "targets",
                sample=self.sample,
                seed=self.seed,
                few_folder=folder / "few-layers" if self.few_layers else None,
            )
            taken = {target.name for target in targets}
            targets += [one for one in types if one.name not in taken]
        if not targets:
            raise UsageError("there is no target", hint="The list is empty")
        return tuple(targets), sampled

    def _check_columns(self) -> None:
        """Refuse columns that the scan which is always made has already, or whose exporter makes no program."""
        scan = self.scan
        exporter = EXPORTERS[scan.exporter]
        if "strict" in self.also and exporter.traces_with_dynamo:
            raise UsageError(f"--also strict asks what --exporter {scan.exporter} asks", hint="Leave out one of them")
        if "decomposed" in self.also and scan.to == "decomposed":
            raise UsageError("--also decomposed asks what --to decomposed asks", hint="Leave out one of them")
        if "decomposed" in self.also and not exporter.makes_program:
            raise UsageError(f"--exporter {scan.exporter} makes no program that could be decomposed")


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
    help="Do not ask targets that have a row in this earlier atlas and have not changed since: keep the row, with its "
    "date. Can be repeated.",
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
    require_packages(PACKAGES_OF.get(given["to"], ()), option=f"--to {given['to']}", extra="onnx")
    if not (given["targets"] or given["kind"] or given["list_file"]):
        raise click.UsageError(
            "TARGETS are missing: name some, or give --transformers KIND or --list FILE", ctx=context
        )
    scan_options = pop_scan_options(given, _SCAN_OPTIONS)
    return _sweep(
        SweepArguments(scan_options=scan_options, **given), command=shlex.join(("exportdoctor", *context.obj))
    )


def _sweep(arguments: SweepArguments, *, command: str) -> int:
    from exportdoctor.report.wording.atlas import rows_left_out, sweep_summary
    from exportdoctor.store.places import data_home, new_run_id
    from exportdoctor.sweep.run_sweep import names_in_atlas, read_kept_rows, write_atlas
    from exportdoctor.sweep.sweep_targets import make_tasks

    arguments.check()
    folder = arguments.out or data_home() / "sweeps" / new_run_id("sweep")
    _check_folder(folder)
    request = arguments.request(folder, command=command)
    kept = read_kept_rows(request, timeout=arguments.target_timeout)
    tasks = make_tasks(
        request.targets,
        folder,
        sizes=request.sizes,
        words=request.words,
        timeout=arguments.target_timeout,
        memory_mb=request.memory_mb,
        also=request.also,
    )
    left = [task for task in tasks if task.name not in kept.rows]
    stopped = _ask(request, left, quiet=arguments.quiet)
    dropped = names_in_atlas(folder) - {task.name for task in tasks}
    atlas = write_atlas(request, tasks, kept)
    write_out("".join(f"{line}\n" for line in sweep_summary(atlas)))
    if not arguments.quiet:
        print_line(f"saved in {folder}")
    if dropped:
        print_line(rows_left_out(len(dropped)))
    if isinstance(stopped, KeyboardInterrupt):
        print_line("interrupted. The same command with the same --out continues")
        return ExitCode.INTERRUPTED
    if stopped is not None:
        raise stopped
    return _exit_code(atlas)


def _ask(request: SweepRequest, tasks: Sequence[SweepTask], *, quiet: bool) -> BaseException | None:
    """Ask what is not answered yet, each answer told as it comes; returns what ended that before its time.

    Raises UsageError where nothing was asked.
    """
    from exportdoctor.report.wording.atlas import sweep_progress
    from exportdoctor.sweep.run_sweep import ask_what_is_left

    begun, done = time.monotonic(), 0

    def tell(answer: SweepAnswer, of: int) -> None:
        nonlocal done
        done += 1
        if not quiet:
            told = ", ".join(f"{run.folder} {run.why or run.status}" for run in answer.runs)
            print_line(sweep_progress(answer.name, told, done=done, of=of, seconds=time.monotonic() - begun))

    try:
        ask_what_is_left(request, tasks, tell)
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, UsageError | StoreError) and not done:
            raise
        return error
    return None


def _exit_code(atlas: Atlas) -> ExitCode:
    verdicts = {cell.verdict for row in atlas.rows for cell in row.cells}
    if verdicts <= {"passes"}:
        return ExitCode.EXPORTS
    return ExitCode.TARGET if verdicts <= {"no_verdict"} else ExitCode.FINDINGS


def _check_folder(folder: Path) -> None:
    """A folder that is not a sweep's is refused: its files would be taken for ours."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder", hint="Choose another folder with --out")
    others = [one for one in folder.iterdir() if one.name != LOCK] if folder.is_dir() else []
    if others and not any((folder / n).exists() for n in ("runs", "targets")):
        raise UsageError(f"{folder} holds other files", hint="Choose another folder with --out")

"""A sweep: asks what is not answered yet, and writes the atlas of what is, however it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from exportdoctor.core.codec import decode, pretty
from exportdoctor.core.errors import ExportdoctorError, StoreError, UsageError
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.run.atlas import Also, Atlas, AtlasCell, AtlasRow, RootCause, SampleFact, Sizes
from exportdoctor.core.scan_options import OPTIONS
from exportdoctor.report.atlas.atlas_difference import compare_atlases
from exportdoctor.report.atlas.atlas_markdown import render_markdown
from exportdoctor.report.atlas.atlas_page import render_page
from exportdoctor.store.atomic_write import make_folder, replace_file
from exportdoctor.store.lock import FolderLock
from exportdoctor.sweep.atlas_rows import AT_A_LIMIT, STAGES, count_shares, find_causes, make_row
from exportdoctor.sweep.cluster import ask_all, child_environment, open_cluster
from exportdoctor.sweep.sweep_targets import SweepTarget, digest_target
from exportdoctor.sweep.target_task import (
    STOP,
    AnswerStatus,
    SweepAnswer,
    SweepTask,
    answer_without_run,
    keep_answer,
    kept_run,
    read_answer,
    scan_words,
)


class SweepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep of `targets` in `folder`. `to` and `words` are options of `scan`; `command` is the user's own.

    `also` are columns with scans of their own. `keep` are earlier atlases, the latest last: a target with a row there
    that still holds is not asked. `few_layers`: model types have few where they can.
    """

    targets: tuple[SweepTarget, ...]
    folder: Path
    sizes: tuple[Sizes, ...]
    to: str
    words: tuple[str, ...]
    jobs: int
    memory_mb: float
    scheduler: str
    command: str
    sample: SampleFact | None = None
    earlier: Path | None = None
    also: tuple[Also, ...] = ()
    keep: tuple[Path, ...] = ()
    few_layers: bool = False


class KeptRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of earlier atlases by model, and the root causes that they name."""

    rows: dict[str, AtlasRow] = {}
    causes: tuple[RootCause, ...] = ()


_LESS = tuple(OPTIONS[name].flag for name in ("cure", "search"))
"""Words with which a scan asks less."""
_OTHER_QUESTION, _LIMITS = ("--exporter", "--allow"), ("--timeout", "--memory")
"""Options of a scan with which a row that is kept must have been asked: always, or if a limit may have cut it off."""
_SAME_VERSIONS = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
"""What a row that is kept must have been asked with."""


def read_kept_rows(request: SweepRequest, *, timeout: float) -> KeptRows:
    """The rows of `request.keep` that a sweep need not ask: of the same model, as its sources are now, complete, with
    every column of this sweep, and not cut off at a limit that is higher now (`timeout` in seconds).

    An older atlas does not say which model a row is of: the name tells that of a model type alone.

    Raises UsageError for an atlas of other versions, and what `read_atlas` raises.
    """
    now, rows, causes = child_environment(), dict[str, AtlasRow](), list[RootCause]()
    targets = {target.name: target for target in request.targets}
    columns = {(sizes, stage) for sizes in request.sizes for stage in (*STAGES[request.to], *request.also)}
    for file in request.keep:
        atlas = read_atlas(file)
        for name in _SAME_VERSIONS:
            then, here = atlas.environment.get(name, "missing"), now.get(name, "missing")
            if then != here:
                raise UsageError(f"the rows of {str(file)!r} were asked with {name} {then}, here is {here}")
        causes += atlas.causes
        for row in atlas.rows:
            asked = {(cell.sizes, cell.stage) for cell in row.cells}
            holds = row.complete and columns <= asked and not _asks_more(request, row, timeout=timeout)
            if holds and _is_of(row, targets.get(row.name)):
                cells = (cell for cell in row.cells if (cell.sizes, cell.stage) in columns)
                rows[row.name] = msgspec.structs.replace(
                    row, cells=tuple(msgspec.structs.replace(cell, run="") for cell in cells), kept=True
                )
    return KeptRows(rows=rows, causes=tuple(causes))


def _is_of(row: AtlasRow, target: SweepTarget | None) -> bool:
    """Whether the row is the answer of this very target."""
    if target is None or not row.digest:
        return target is not None and target.model_type
    return row.digest in (digest_target(one) for one in (target.ref, target.whole) if one)


def _asks_more(request: SweepRequest, row: AtlasRow, *, timeout: float) -> bool:
    """Whether a sweep gives a target more time, memory or layers than its row had, or searches where that failed and
    did not."""
    cut = any(cell.verdict == "no_verdict" or cell.cut_off or cell.kind in AT_A_LIMIT for cell in row.cells)
    more = timeout > row.timeout or request.memory_mb > row.memory_mb
    failed = (cell for cell in row.cells if cell.verdict == "fails")
    left_out = {word for cell in failed for word in cell.command.split() if word in _LESS}
    alike = (*_OTHER_QUESTION, *(_LIMITS if cut else ()))
    wanted = ((cell, scan_words(request.words, cell.sizes, _also(cell))) for cell in row.cells)
    if any(_values(alike, cell.command.split()) != _values(alike, words) for cell, words in wanted):
        return True
    return (cut and more) or not left_out <= {*request.words} or (bool(row.few_layers) and not request.few_layers)


def _also(cell: AtlasCell) -> Also:
    return "strict" if cell.stage == "strict" else ""


def _values(options: Sequence[str], words: Sequence[str]) -> list[tuple[str, str]]:
    """What a command line gives for these options."""
    return [(word, value) for word, value in pairwise(words) if word in options]


def read_atlas(file: Path) -> Atlas:
    """An atlas.json. Raises UsageError or StoreError for what is none."""
    try:
        atlas: Atlas = decode(file.read_bytes(), Atlas)
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error.strerror}") from error
    except StoreError as error:
        raise StoreError(f"{str(file)!r} is {error.message}", hint="Give the atlas.json of a sweep") from error
    return atlas


def names_in_atlas(folder: Path) -> set[str]:
    """The targets that the atlas in a folder has rows of; none where it has no atlas that can be read."""
    try:
        return {row.name for row in read_atlas(folder / "atlas.json").rows}
    except ExportdoctorError:
        return set()


def ask_what_is_left(
    request: SweepRequest, tasks: Sequence[SweepTask], tell: Callable[[SweepAnswer, int], None]
) -> dict[str, SweepAnswer]:
    """All answers, by name: those kept first, then each as it comes. `tell` gets the answer and how many are to come.

    A KeyboardInterrupt ends the running scans, which keep what they know, and is raised again. Raises StoreError where
    another sweep writes in the folder.
    """
    make_folder(request.folder)
    lock = FolderLock(request.folder)
    try:
        return _ask_what_is_left(request, tasks, tell)
    finally:
        lock.release()


def _ask_what_is_left(
    request: SweepRequest, tasks: Sequence[SweepTask], tell: Callable[[SweepAnswer, int], None]
) -> dict[str, SweepAnswer]:
    answers = {task.name: kept for task in tasks if (kept := _find_kept(task)) is not None}
    left = [task for task in tasks if task.name not in answers]
    for task in [task for task in left if task.why]:
        answers[task.name] = answer_without_run(task, AnswerStatus.NO_VERDICT, task.why)
        keep_answer(task, answers[task.name])
        left.remove(task)
    if not left:
        return answers

    def take(answer: SweepAnswer) -> None:
        answers[answer.name] = answer
        tell(answer, len(left))

    stop = request.folder / f"{STOP}-{left[0].session}"
    with open_cluster(jobs=request.jobs, memory_mb=request.memory_mb, scheduler=request.scheduler) as client:
        try:
            ask_all(client, left, take)
        except BaseException:
            stop.touch()
            if _has_ended(client):
                stop.unlink()
            raise
    return answers


def _has_ended(client: object, seconds: float = 15.0) -> bool:
    """Wait until no node runs a task; false where that is not known, and the file must stay for those that do."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if not any(client.processing().values()):  # type: ignore[attr-defined]
                return True
        except Exception:  # the scheduler has gone
            return False
        time.sleep(0.2)
    return False


def _find_kept(task: SweepTask) -> SweepAnswer | None:
    """The earlier answer, where every run of it still holds."""
    earlier = read_answer(Path(task.folder))
    holds = earlier is not None and all(kept_run(task, *asked, earlier) is not None for asked in task.asks)
    return earlier if holds else None


def write_atlas(request: SweepRequest, tasks: Sequence[SweepTask], kept: KeptRows) -> Atlas:
    """Write atlas.json, atlas.md and atlas.html of the answers here, and of `kept` where there is none; answers to
    another question are left out."""
    rows, findings = list[AtlasRow](), dict[str, list[Finding]]()
    targets = {target.name: target for target in request.targets}
    for task in tasks:
        answer = read_answer(Path(task.folder))
        if answer is None or answer.key != task.key or (not answer.is_final and task.name in kept.rows):
            rows += [kept.rows[task.name]] if task.name in kept.rows else []
            continue
        wanted = tuple(run for run in answer.runs if (run.sizes, run.also) in task.asks)
        answer = msgspec.structs.replace(answer, runs=wanted)
        target, is_whole = targets[task.name], answer.ref == task.whole
        row, found = make_row(
            answer,
            Path(task.folder),
            to=request.to,
            ref=target.whole if is_whole else target.ref,
            words=request.words,
            few_layers="" if is_whole else target.few_layers,
            digest=task.digest_of_whole if is_whole else task.digest,
        )
        rows.append(row)
        findings[row.name] = found
    environment = {name: version for name, version in child_environment().items() if name != "folder"}
    difference = None
    if request.earlier is not None:
        before = read_atlas(request.earlier)
        difference = compare_atlases(
            before.rows, rows, name=str(request.earlier), environment=(before.environment, environment)
        )
    atlas = Atlas(
        at=max((row.at for row in rows), default=time.time()),
        command=request.command,
        environment=environment,
        sample=request.sample,
        difference=difference,
        shares=count_shares(rows, request.sizes, request.to, of=len(tasks), also=request.also),
        causes=find_causes(rows, findings, kept.causes),
        rows=tuple(rows),
        complete=len([row for row in rows if row.complete]) == len(tasks),
    )
    make_folder(request.folder)
    replace_file(request.folder / "atlas.json", pretty(atlas))
    replace_file(request.folder / "atlas.md", render_markdown(atlas).encode())
    replace_file(request.folder / "atlas.html", render_page(atlas).encode())
    return atlas


def default_jobs() -> int:
    """Targets at a time: as many as there are cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

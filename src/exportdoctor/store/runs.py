"""Lists the stored runs, and finds the one that a user names."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Literal

import msgspec

from exportdoctor.core.errors import ExitCode, ExportdoctorError, StoreError, UsageError
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import RunState, fold
from exportdoctor.store import journal
from exportdoctor.store.atomic_write import replace_file
from exportdoctor.store.lock import is_held
from exportdoctor.store.places import runs_root
from exportdoctor.store.run_folder import REPORT

RunStatus = Literal["finished", "running", "error", "cut off", "unreadable"]
_ELSEWHERE = ".path"  # a run with --out leaves a file `<run>.path` here that says where it is
# what a summary needs; the rest, nine tenths of the bytes, is not decoded
_SUMMARY_EVENTS = ("run_started", "run_resumed", "part_finished", "finding_made", "run_finished")


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. `at` = seconds since the epoch, `parts` maps each finished part to its verdict.

    `begun` are the parts that were captured and have no verdict.
    """

    run: str
    path: str
    status: RunStatus
    ref: str = ""
    at: float = 0.0
    seconds: float = 0.0
    parts: dict[str, str] = {}
    begun: tuple[str, ...] = ()
    findings: int = 0
    exit_code: int | None = None
    problem: str = ""


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands on disk now."""

    run: str
    path: Path
    events: tuple[ev.AnyEvent, ...]
    running: bool

    @property
    def state(self) -> RunState:
        """The fold of its events."""
        return fold(self.events)


def list_runs(root: Path | None = None) -> tuple[RunSummary, ...]:
    """All runs, the one last started first; one that cannot be read is listed with its problem."""
    return tuple(sorted((_summary(run, path) for run, path in _last_written_first(root)), key=lambda run: -run.at))


def run_ids() -> tuple[str, ...]:
    """The ids of all runs, the one last written to first, without reading them."""
    return tuple(run for run, _ in _last_written_first(None))


def find_run(which: str | None = None, root: Path | None = None) -> Path:
    """The folder of the run that `which` names: a path, an id, the start of one; None: the one last started or resumed
    of those that were not refused.

    Raises UsageError where there is none, or more than one, StoreError where only its report is left.
    """
    if which is not None and (Path(which) / journal.NAME).is_file():
        return Path(which)
    if which is not None and (left := _left_of_run(Path(which))):
        hint = f"Copy the whole folder of the run, with {journal.NAME}, or scan again"
        raise StoreError(f"{left} is the report of a run, and {journal.NAME} is not beside it", hint=hint)
    runs = _last_written_first(root)
    if which is None:
        if not runs:
            raise UsageError("there is no run yet", hint="Start one with: exportdoctor scan Qwen2.5-VL-3B")
        return _last_begun([path for _, path in runs])
    matches = _match(which, runs)
    if not matches:
        raise UsageError(f"no run matches {which!r}", hint="See: exportdoctor runs")
    if len(matches) > 1:
        names = ", ".join(run for run, _ in matches[:4]) + (", …" if len(matches) > 4 else "")
        raise UsageError(f"{which!r} matches {len(matches)} runs: {names}", hint="Type more of the id")
    return matches[0][1]


def _left_of_run(path: Path) -> str:
    """The file in which a run's report is, if the path is one, or a folder that has one."""
    found = path / REPORT if path.is_dir() else path
    return str(found) if found.name == REPORT and found.is_file() else ""


def read_run(path: Path) -> StoredRun:
    """The run in `path`. Raises StoreError where there is none, or none that this version can read."""
    events = journal.read_events(path / journal.NAME)
    if not events or not isinstance(events[0], ev.RunStarted):
        raise StoreError(f"the run in {path} was cut off before its first event", hint="Scan again")
    return StoredRun(run=events[0].run, path=path, events=events, running=is_held(path))


def target_again(run: StoredRun) -> TargetRef:
    """What the run scanned, to be built again from any folder: a relative path as the whole one that was read."""
    started = run.state.started
    assert started is not None  # read_run refuses others
    target = started.target
    found = re.fullmatch(r"(?P<file>.+\.py)(?P<rest>(:\w*)?)", target.ref)
    named, rest = (found["file"], found["rest"]) if found else (target.ref, "")
    parts = [part for part in PurePath(os.path.normpath(named)).parts if part != os.pardir]
    if os.path.isabs(named) or not parts:
        return target
    tail = os.path.join(*parts, *(() if found else ("config.json",)))
    opened = (event.opened for event in run.events if isinstance(event, ev.TargetOpened))
    read = (file for one in opened for file, identity in one.sources.items() if identity and os.path.isabs(file))
    file = next((file for file in read if file.endswith(os.sep + tail)), None)
    if file is None:
        return target
    return msgspec.structs.replace(target, ref=f"{file}{rest}" if found else os.path.dirname(file))


def require_target(started: ev.RunStarted | None, asked: Collection[Finding] = ()) -> None:
    """Raise UsageError where a run is of a module that only a Python process had: no command can build it again. Not
    where each finding that is asked about has a script, which needs none."""
    has_scripts = bool(asked) and all(finding.repro is not None for finding in asked)
    if started is not None and not started.command and not has_scripts:
        raise UsageError(
            f"{started.run} is of a module in memory ({started.target.ref}), which cannot be built again",
            hint="Return the module and its inputs from a function, and scan FILE.py:FUNCTION",
        )


def delete_run(which: str, root: Path | None = None) -> Path:
    """Delete the run that `which` names, with its logs and scripts; returns where it was.

    Raises UsageError for one that is being written, or that lies in a folder of the user's own.
    """
    path, root = find_run(which, root), root or runs_root()
    if path.is_symlink() or path.absolute().parent != root:
        raise UsageError(f"{path} is not in {root}, and is yours to delete", hint=f"rm -r {shlex.quote(str(path))}")
    if is_held(path):
        raise UsageError(f"{path.name} is being written", hint="Stop its scan first")
    shutil.rmtree(path)
    return path


def register(run: str, path: Path, root: Path | None = None) -> None:
    """Let a run outside the runs' folder be found by its id; where that cannot be noted, its path still finds it."""
    root = root or runs_root()
    if path.absolute().parent == root:
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        replace_file(root / f"{run}{_ELSEWHERE}", str(path.absolute()).encode())
    except (OSError, StoreError):
        return


def _last_begun(paths: Sequence[Path]) -> Path:
    """Of runs, the one last written to first, the one last started or resumed that has something to show, else the
    first.

    A run may be written to long after it ended: by repro, or by a shim that is tried. None is read that was last
    written to before another one began.
    """
    found: Path | None = None
    for path in paths:
        if found is not None and _began(found) >= _age(path):
            break
        if not _has_nothing(path) and (found is None or _began(path) > _began(found)):
            found = path
    return found or paths[0]


def _began(path: Path) -> float:
    """When the run was started or last resumed, in seconds since the epoch; of one that cannot be read, its age."""
    try:
        events = journal.read_events(path / journal.NAME, only=("run_started", "run_resumed"))
    except ExportdoctorError:
        return _age(path)
    return max((event.at for event in events), default=_age(path))


def _last_written_first(root: Path | None) -> list[tuple[str, Path]]:
    """Each run's id and folder, by the time of its last event."""
    return sorted(_folders(root or runs_root()), key=lambda run: (_age(run[1]), run[0]), reverse=True)


def _folders(root: Path) -> Iterator[tuple[str, Path]]:
    """Every folder that holds a run, there or elsewhere."""
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            elsewhere = entry.suffix == _ELSEWHERE and entry.is_file()
            path = Path(entry.read_text()) if elsewhere else entry
        except (OSError, UnicodeDecodeError):
            continue
        if (path / journal.NAME).is_file():
            yield entry.stem if elsewhere else entry.name, path


def _has_nothing(path: Path) -> bool:
    """Whether a run has nothing to show: its request did not fit the target, or not even its start could be written."""
    try:
        events = journal.read_events(path / journal.NAME, only=("run_started", "run_resumed", "run_finished"))
    except ExportdoctorError:
        return False
    last = _last_end(events)
    return not events or (last is not None and last.exit_code == ExitCode.USAGE)


def _match(which: str, runs: list[tuple[str, Path]]) -> list[tuple[str, Path]]:
    """The run of exactly this id, else those whose id starts so, else those whose id contains it."""
    text = which.strip().lower()
    exact = [run for run in runs if run[0] == text]
    starting = [run for run in runs if text and run[0].startswith(text)]
    return exact or starting or [run for run in runs if text and text in run[0]]


def _age(path: Path) -> float:
    """When the run in `path` was last written to, in seconds since the epoch."""
    try:
        return (path / journal.NAME).stat().st_mtime
    except OSError:
        return 0.0


def _summary(run: str, path: Path) -> RunSummary:
    """The entry of a run in the list, from a few of its events."""
    try:
        events = journal.read_events(path / journal.NAME, only=_SUMMARY_EVENTS)
    except ExportdoctorError as error:
        return RunSummary(run=run, path=str(path), status="unreadable", at=_age(path), problem=error.message)
    started = events[0] if events else None
    if not isinstance(started, ev.RunStarted):
        return RunSummary(run=run, path=str(path), status="unreadable", at=_age(path), problem="no events")
    last = _last_end(events)
    parts: dict[str, str] = {event.part: event.verdict for event in events if isinstance(event, ev.PartFinished)}
    status = _status(path, last)
    return RunSummary(
        run=run,
        path=str(path),
        status=status,
        ref=started.target.ref,
        at=started.at,
        seconds=last.seconds if last else max(0.0, _age(path) - started.at),
        parts=parts,
        begun=_unfinished_parts(path, parts) if status != "finished" else (),
        findings=len({event.finding.id for event in events if isinstance(event, ev.FindingMade)}),
        exit_code=last.exit_code if last else None,
        problem=(last.error or "") if last else "",
    )


def sources_of(path: Path) -> dict[str, str]:
    """What the answers of the run in `path` depend on, files and variables, as far as that can be read."""
    try:
        events = journal.read_events(path / journal.NAME, only=("target_opened",))
    except ExportdoctorError:
        return {}
    opened = (event.opened for event in events if isinstance(event, ev.TargetOpened))
    return {name: value for one in opened for name, value in one.sources.items()}


def _unfinished_parts(path: Path, finished: Collection[str]) -> tuple[str, ...]:
    """The parts that were captured and have no verdict, as far as that can be read."""
    try:
        events = journal.read_events(path / journal.NAME, only=("part_captured",))
    except ExportdoctorError:
        return ()
    names = (event.captured.part for event in events if isinstance(event, ev.PartCaptured))
    return tuple(dict.fromkeys(name for name in names if name not in finished))


def _last_end(events: tuple[ev.AnyEvent, ...]) -> ev.RunFinished | None:
    """The end of the run, unless it was resumed since; repros and tried shims add events behind it."""
    for event in reversed(events):
        if isinstance(event, ev.RunFinished):
            return event
        if isinstance(event, ev.RunStarted | ev.RunResumed):
            return None
    return None


def _status(path: Path, last: ev.RunFinished | None) -> RunStatus:
    """How the run ended, or that it is in progress or was cut off; a lock on one that ended is held for an instant."""
    if last is not None:
        return last.status
    return "running" if is_held(path) else "cut off"

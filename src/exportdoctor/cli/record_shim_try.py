"""Records the results of `shims try` in a run, as events."""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.finding import Finding, ShimTry
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import fold
from exportdoctor.store.digest import sources_of
from exportdoctor.store.run_folder import RunFolder
from exportdoctor.store.runs import read_run

if TYPE_CHECKING:
    from exportdoctor.core.records.outcome import Frame
    from exportdoctor.core.records.target import TargetRef
    from exportdoctor.engine.cure.try_shims import PartTrial


def check_same_target(run: Path, target: TargetRef, *, exporter: str) -> None:
    """Raises UsageError where the run is of another target, of one that is built otherwise, or of another exporter."""
    stored = read_run(run)
    started = stored.state.started
    if started is None:
        raise UsageError(f"The run {run} has not begun", hint="Give a run that has findings, or leave --run out")
    theirs, mine = ([one.ref, *one.options.flags] for one in (started.target, target))
    theirs += ["--exporter", started.options.exporter]
    mine += ["--exporter", exporter]
    if theirs[1:] != mine[1:] or not _is_same_reference(theirs[0], mine[0], read=sources_of(stored.events)):
        raise UsageError(
            f"The run {run} is of {' '.join(theirs)}, not of {' '.join(mine)}",
            hint="Try the shims on the run's own target, or leave --run out",
        )


def _is_same_reference(theirs: str, mine: str, *, read: Container[str]) -> bool:
    """Whether two references name one target, of files by what the run has `read`: it may have begun elsewhere."""
    path, factory = (os.path.abspath(mine), "") if os.path.isdir(mine) else _split(mine)
    if not os.path.exists(path):
        return theirs.casefold() == mine.casefold()
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    return _split(theirs)[1] == factory and (file in read or os.path.realpath(file) in read)


def _split(reference: str) -> tuple[str, str]:
    """The whole path of a file and the factory in it."""
    path, _, factory = reference.rpartition(":")
    return (os.path.abspath(path), factory) if path else (os.path.abspath(reference), "")


def record_tries(found: Sequence[PartTrial], run: Path) -> tuple[str, ...]:
    """Add each result to the run's finding at the line where the part failed; the parts without one are returned.
    Raises StoreError."""
    not_recorded = []
    with RunFolder.reopen(run) as folder:
        state = fold(folder.events)
        for tried in found:
            finding = _at(state.findings.values(), tried.part, tried.at)
            if finding is None:
                not_recorded.append(tried.part)
                continue
            further = _at(state.findings.values(), tried.part, tried.next_at) if tried.result == "moved" else None
            new = ShimTry(
                shim="+".join(tried.shims),
                result=tried.result,
                next=further.id if further else None,
                note=tried.after if tried.result == "error" else tried.condition,
            )
            kept = tuple(one for one in finding.shims_tried if one.shim != new.shim)
            event = ev.FindingMade(at=time.time(), finding=msgspec.structs.replace(finding, shims_tried=(*kept, new)))
            folder.append(event)
            state.apply(event)
        folder.write_report(state.report())
    return tuple(not_recorded)


def _at(findings: Iterable[Finding], part: str, frame: Frame | None) -> Finding | None:
    """The part's finding at that line; if no line is known, the part's first without one."""
    mine = [finding for finding in findings if finding.part == part]
    place = (frame.file, frame.line, frame.function) if frame else (None, None, None)
    return next((finding for finding in mine if (finding.file, finding.line, finding.function) == place), None)

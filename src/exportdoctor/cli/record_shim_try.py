"""Records the results of `shims try` in a run, as events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from exportdoctor.core.failure.finding import Finding, ShimTry
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import fold
from exportdoctor.store.run_folder import RunFolder

if TYPE_CHECKING:
    from exportdoctor.core.records.outcome import Frame
    from exportdoctor.engine.cure.try_shims import PartTrial


def record_tries(found: Sequence[PartTrial], run: Path) -> None:
    """Add each result to the run's finding at the line where the part failed. Raises StoreError."""
    with RunFolder.reopen(run) as folder:
        state = fold(folder.events)
        for tried in found:
            finding = _at(state.findings.values(), tried.part, tried.at)
            if finding is None:
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


def _at(findings: Iterable[Finding], part: str, frame: Frame | None) -> Finding | None:
    """The part's finding at that line; if no line is known, the part's first without one."""
    mine = [finding for finding in findings if finding.part == part]
    place = (frame.file, frame.line, frame.function) if frame else (None, None, None)
    return next((finding for finding in mine if (finding.file, finding.line, finding.function) == place), None)

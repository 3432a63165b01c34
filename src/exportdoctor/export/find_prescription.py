"""Which shims a part needs, from what an earlier scan of the same target found."""

from __future__ import annotations

from pathlib import Path

import msgspec

from exportdoctor.core.codec import decode
from exportdoctor.core.errors import ExportdoctorError, UsageError
from exportdoctor.core.run.report import PartRecord
from exportdoctor.store.runs import list_runs

_REPORT = "report.json"


class _Slice(msgspec.Struct, frozen=True):
    """The fields of a report that are read here."""

    parts: tuple[PartRecord, ...] = ()


def find_prescription(target: str, part: str) -> tuple[str, ...]:
    """The ids of the newest finished scan's prescription for the part; none where it exports as it is.

    Raises UsageError where no scan of the target knows how to export the part.
    """
    failing = False
    for run in list_runs():
        if run.ref.casefold() != target.casefold() or part not in run.parts:
            continue
        record = _record(Path(run.path), part)
        if record is None or record.only or not record.complete:
            continue
        if record.verdict == "passes":
            return ()
        if record.prescription is not None:
            return record.prescription.shims
        failing = True
    if failing:
        raise UsageError(
            f"No scan of {target} found shims with which part {part} exports",
            hint="Name shims with --shims a+b; see: exportdoctor shims list",
        )
    raise UsageError(
        f"Part {part} of {target} has not been scanned, so the shims it needs are not known",
        hint=f"Run: exportdoctor scan {target} --part {part}, or name the shims with --shims a+b or --shims none",
    )


def _record(path: Path, part: str) -> PartRecord | None:
    """The part in a run's report; None where the report is gone or cannot be read."""
    try:
        found: _Slice = decode((path / _REPORT).read_bytes(), _Slice)
    except (OSError, ExportdoctorError):
        return None
    return next((one for one in found.parts if one.name == part), None)

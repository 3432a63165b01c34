"""Which shims a part needs, from what an earlier scan of the same target found."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from exportdoctor.core.codec import decode
from exportdoctor.core.errors import ExportdoctorError, UsageError
from exportdoctor.core.run.report import PartRecord
from exportdoctor.core.scan_options import DEFAULTS
from exportdoctor.core.versions import installed_version
from exportdoctor.process.interpreter import handed_over
from exportdoctor.report.wording.cures import files_of
from exportdoctor.store.runs import RunSummary, list_runs, sources_of
from exportdoctor.targets import split_factory, target_path

_REPORT = "report.json"
_DECISIVE = ("torch", "transformers", "onnx-diagnostic")
"""Shims are of these packages, or for them."""


class _Slice(msgspec.Struct, frozen=True):
    """The fields of a report that are read here."""

    parts: tuple[PartRecord, ...] = ()
    environment: dict[str, str] = {}


class FoundShims(NamedTuple):
    """The ids of shims, and the files that define those of the user's own."""

    names: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def find_prescription(target: str, part: str) -> FoundShims:
    """The shims of the newest finished scan's prescription for the part; none where it exports as it is,
    also where a later stage fails and no scan knows shims for that.

    A scan counts if it asked the exporter that writes files, with the versions that are installed. Raises UsageError
    where no such scan of the target knows how to export the part.
    """
    exports, failing, others = False, False, ""
    for run in list_runs():
        if part not in run.parts or not _is_of(run, target):
            continue
        found = _read(Path(run.path))
        record = next((one for one in found.parts if one.name == part), None)
        if record is None or record.only or not record.complete:
            continue
        if other := _difference(record, found.environment):
            others = others or other
            continue
        if record.verdict == "passes":
            return FoundShims()
        if record.prescription is not None:
            return FoundShims(record.prescription.shims, files_of(record.prescription.steps))
        exports |= record.root_stages.get("export") == "pass"  # and fails in a later stage, or with other numbers
        failing = True
    if exports:
        return FoundShims()
    if failing:
        raise UsageError(
            f"No scan of {target} found shims with which part {part} exports",
            hint="Name shims with --shims a+b, or --shims none; see: exportdoctor shims list",
        )
    under = ("--python", python) if (python := handed_over()) else ()
    command = shlex.join(("exportdoctor", "scan", target, "--part", part, *under))
    raise UsageError(
        f"Part {part} of {target} was scanned with {others}: what it needs here is not known"
        if others
        else f"Part {part} of {target} has not been scanned, so the shims it needs are not known",
        hint=f"Run: {command}, or name the shims with --shims a+b or --shims none",
    )


def _is_of(run: RunSummary, target: str) -> bool:
    """Whether the run is of this target: of a file or folder, of the one that its path leads to from here."""
    found = target_path(target)
    if found is None:
        return run.ref.casefold() == target.casefold()
    path = os.path.realpath(found[0])
    files = set(map(os.path.realpath, sources_of(Path(run.path))))
    return _factory_name(run.ref) == _factory_name(target) and not files.isdisjoint({path, f"{path}/config.json"})


def _factory_name(ref: str) -> str:
    """`file.py:factory` without the folder of the file; empty for another target."""
    factory = split_factory(ref)
    return f"{factory[0].name}{factory[1]}" if factory is not None else ""


def _difference(record: PartRecord, environment: Mapping[str, str]) -> str:
    """How a scan's question differs from that of an export here; empty if it does not."""
    if record.exporter != DEFAULTS["exporter"]:
        return f"--exporter {record.exporter}"
    for name in _DECISIVE:
        there, here = environment.get(name, ""), installed_version(name)
        if there and there.partition("+")[0] != here.partition("+")[0]:
            return f"{name} {there}, and here is {here or 'none'}"
    return ""


def _read(path: Path) -> _Slice:
    """A run's report; an empty one where it is gone or cannot be read."""
    try:
        found: _Slice = decode((path / _REPORT).read_bytes(), _Slice)
    except (OSError, ExportdoctorError):
        return _Slice()
    return found

"""What can be picked for a command: shims, first those that the run has tried, and other runs."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from exportdoctor.core.limits import SHIM_LIST_SECONDS
from exportdoctor.report import wording
from exportdoctor.store.runs import list_runs
from exportdoctor_tui.actions.commands import fitting_shims

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from exportdoctor.core.scan_options import ScanOptions
    from exportdoctor_tui.state.selection import Selection


class PickerItem(NamedTuple):
    """`id` is what a picker returns; `remark` is shown beside it."""

    id: str
    remark: str = ""


def known_shims(selection: Selection) -> tuple[PickerItem, ...]:
    """Single shims of the prescription, then those that were tried on the finding, with their results."""
    known: dict[str, PickerItem] = {}
    for item in _known_shims(selection):
        known.setdefault(item.id, item)
    return tuple(known.values())


def _known_shims(selection: Selection) -> Iterator[PickerItem]:
    prescription = selection.part.record.prescription
    for step in prescription.steps if prescription else ():
        yield PickerItem(step.shim, f"prescribed · {step.title}")
    for tried in selection.finding.shims_tried if selection.finding else ():
        if "+" not in tried.shim:
            yield PickerItem(tried.shim, wording.shim_effect(tried))


def all_shims(options: ScanOptions, python: str = "") -> tuple[PickerItem, ...]:
    """Every shim that fits the installed versions. Takes seconds, in another process. Raises OSError."""
    command = fitting_shims(options, python)
    done = subprocess.run(
        command, capture_output=True, timeout=SHIM_LIST_SECONDS, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise OSError(done.stderr.decode("utf-8", "replace").strip() or "the list of shims could not be had")
    shims: list[dict[str, Any]] = json.loads(done.stdout)
    return tuple(PickerItem(shim["id"], f"{wording.soundness(shim['soundness'])} · {shim['title']}") for shim in shims)


def other_runs(path: str, root: Path | None) -> tuple[PickerItem, ...]:
    """All readable runs but the one in `path`, the newest first."""
    return tuple(
        PickerItem(run.run, f"{time.strftime('%m-%d %H:%M', time.localtime(run.at))}  {run.ref}  {run.status}")
        for run in list_runs(root)
        if run.path != path and run.status != "unreadable"
    )

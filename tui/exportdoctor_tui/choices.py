"""What can be picked for a deed: shims, those that the run knows first; other runs."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

from exportdoctor.report import wording
from exportdoctor_tui.commands import fitting_shims
from exportdoctor_tui.screens.pick import Choice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from exportdoctor.core.scan_options import ScanOptions
    from exportdoctor_tui.pages.selection import Selection

_PATIENCE = 120.0  # seconds for the list of all shims, on a machine that is busy


def known_shims(selection: Selection) -> tuple[Choice, ...]:
    """Single shims of the prescription, then those that were tried on the finding, with what they did."""
    found: dict[str, Choice] = {}
    for choice in _known(selection):
        found.setdefault(choice.id, choice)
    return tuple(found.values())


def _known(selection: Selection) -> Iterator[Choice]:
    prescription = selection.part.record.prescription
    for step in prescription.steps if prescription else ():
        yield Choice(step.shim, f"prescribed · {step.title}")
    for tried in selection.finding.shims_tried if selection.finding else ():
        if "+" not in tried.shim:
            yield Choice(tried.shim, wording.shim_result(tried).removeprefix(tried.shim).strip())


def all_shims(options: ScanOptions) -> tuple[Choice, ...]:
    """Every shim that fits what is installed. Asked of a process, for looking takes seconds. Raises OSError."""
    done = subprocess.run(
        fitting_shims(options), capture_output=True, timeout=_PATIENCE, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise OSError(done.stderr.decode("utf-8", "replace").strip() or "the list of shims could not be had")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return tuple(Choice(shim["id"], f"{shim['soundness']} · {shim['title']}") for shim in found)


def other_runs(path: str, root: Path | None) -> tuple[Choice, ...]:
    """All runs but the one in `path`, the newest first."""
    from exportdoctor.store.runs import list_runs

    return tuple(
        Choice(run.run, f"{time.strftime('%m-%d %H:%M', time.localtime(run.at))}  {run.ref}  {run.status}")
        for run in list_runs(root)
        if run.path != path and run.status != "unreadable"
    )

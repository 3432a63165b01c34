"""Saves a script in its run's folder: the file, the event for it, and the report written again.

The scripts of other failures lie beside it. The report does not mention them: they are no findings of the model.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from exportdoctor.core.failure.finding import Repro
from exportdoctor.repro.pipeline import ReproResult
from exportdoctor.store.atomic_write import make_folder, replace_file
from exportdoctor.store.run_folder import RunFolder

FOLDER = "repros"


def save_repro(made: ReproResult, run: Path) -> Path:
    """Write the script below the run's folder and note it; returns its path. Raises StoreError."""
    with RunFolder.reopen(run) as folder:
        make_folder(run / FOLDER)
        path = run / FOLDER / f"{made.finding.id}.py"
        replace_file(path, made.text.encode())
        _save_others(made, path)
        repro = Repro(
            path=f"{FOLDER}/{path.name}",
            lines=made.lines,
            imports=made.imports,
            verified=made.sighting.verified,
        )
        folder.add_finding(msgspec.structs.replace(made.finding, repro=repro))
    return path


def other_name(made: ReproResult, number: int) -> str:
    """What the script of the `number`th other failure is called, beside the one of the finding."""
    return f"{made.finding.id}-other-{number}.py"


def _save_others(made: ReproResult, beside: Path) -> None:
    """In place of those of an earlier reduction, unless this one was cut off before it came to them."""
    if made.reduction.interrupted:
        return
    for old in beside.parent.glob(f"{made.finding.id}-other-*.py"):
        old.unlink(missing_ok=True)
    for number, other in enumerate(made.others, 1):
        replace_file(beside.parent / other_name(made, number), other.text.encode())

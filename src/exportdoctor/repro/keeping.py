"""Keeps a script with its run: the file, the event that tells of it, and the report made anew."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from exportdoctor.core import event as ev
from exportdoctor.core.finding import Repro
from exportdoctor.core.state import fold
from exportdoctor.repro.making import Made
from exportdoctor.store.disk import make_folder, replace_file
from exportdoctor.store.run_folder import RunFolder

FOLDER = "repros"


def keep(made: Made, run: Path) -> Path:
    """Write the script below the run's folder and note it; returns its path. Raises StoreError."""
    with RunFolder.reopen(run) as folder:
        make_folder(run / FOLDER)
        path = run / FOLDER / f"{made.finding.id}.py"
        replace_file(path, made.text.encode())
        repro = Repro(
            path=f"{FOLDER}/{path.name}",
            lines=made.lines,
            imports=made.imports,
            verified=made.sighting.verified,
        )
        event = ev.FindingMade(at=time.time(), finding=msgspec.structs.replace(made.finding, repro=repro))
        folder.append(event)
        folder.write_report(fold((*folder.events, event)).report())
    return path

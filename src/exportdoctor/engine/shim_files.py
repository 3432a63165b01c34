"""Imports the user's files with shims: in a copy of this process first, for their code may exit or never end."""

from __future__ import annotations

from collections.abc import Sequence

from exportdoctor.core.errors import UsageError
from exportdoctor.core.limits import IDLE_SHIM_FILE, PATIENCE, SHIM_FILE
from exportdoctor.process.rehearsal import rehearse
from exportdoctor.process.supervise import Limits
from exportdoctor.report import wording
from exportdoctor.shims import registry

LIMITS = Limits(wall=PATIENCE * SHIM_FILE, cpu=SHIM_FILE, idle=IDLE_SHIM_FILE)


def check_shim_files(files: Sequence[str]) -> None:
    """Raise UsageError where one of the files can't be imported or has no shims."""
    for file in files:
        went = rehearse(lambda file=file: registry((file,)), LIMITS)  # type: ignore[misc]
        if went.error:
            raise UsageError(went.error)
        if not went.succeeded:
            raise UsageError(wording.shim_file_refused(file, went.killed.seconds if went.killed else None, went.end))
    registry(files)

"""What a worker replies, taken at its word: a refusal becomes the error that it tells of."""

from __future__ import annotations

from typing import Any

from exportdoctor.core.errors import TargetError, WorkerLost
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.scan import Capture, Captured
from exportdoctor.engine.pool.worker_pool import Pool


def accepted(reply: Any) -> Any:
    """The reply. Raises UsageError, TargetError or, where the worker itself failed, ExportdoctorError."""
    if not isinstance(reply, Refused):
        return reply
    raise reply.to_error()


def captured(pool: Pool, command: Capture) -> Captured:
    """The part, captured. Raises TargetError also where its forward kills the process."""
    try:
        found = accepted(pool.capture(command))
    except WorkerLost as error:
        raise TargetError(f"The eager forward of part {command.part} kills its process: {error.message}") from error
    assert isinstance(found, Captured)
    return found

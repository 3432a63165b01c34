"""The shapes that all three worker protocols share: a reply, and the refusal that stands for an error in the worker."""

from __future__ import annotations

import traceback
from typing import Literal

import msgspec

from exportdoctor.core.errors import ExitCode, ExportdoctorError, NoPartError, TargetError, UsageError, WorkerFailed
from exportdoctor.core.exception_text import summary

Fault = Literal["usage", "target", "part", "internal"]
"""What must change: the request, the target's own code, or exportdoctor."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="say"):
    """One line from a worker process."""


class Refused(Reply, frozen=True, kw_only=True, tag="refused"):
    """Why there is no answer. `stack` is a traceback, one line each."""

    message: str
    fault: Fault
    hint: str = ""
    stack: tuple[str, ...] = ()

    @classmethod
    def from_error(cls, error: BaseException) -> Refused:
        """The refusal that a worker sends in place of `error`."""
        if isinstance(error, TargetError):
            fault: Fault = "part" if isinstance(error, NoPartError) else "target"
            return cls(message=error.message, hint=error.hint, fault=fault, stack=error.stack)
        if isinstance(error, ExportdoctorError):
            fault = "usage" if error.exit_code == ExitCode.USAGE else "internal"
            return cls(message=error.message, hint=error.hint, fault=fault)
        stack = tuple("".join(traceback.format_exception(error)).splitlines())
        return cls(message=summary(error), fault="internal", stack=stack)

    def to_error(self) -> ExportdoctorError:
        """The error to raise here: UsageError, TargetError, or ExportdoctorError where the worker failed."""
        match self.fault:
            case "usage":
                return UsageError(self.message, hint=self.hint)
            case "target":
                return TargetError(self.message, hint=self.hint, stack=self.stack)
            case "part":
                return NoPartError(self.message, hint=self.hint, stack=self.stack)
            case "internal":
                said = f"The worker failed: {self.message}"
                return WorkerFailed(said, stack=self.stack) if self.stack else ExportdoctorError(said, hint=self.hint)

"""Every error that a user may see, with what to do about it, and the exit code that goes with each.

A failing export is data and never raised here; these are the cases in which there is nothing to diagnose.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells its caller."""

    EXPORTS = 0
    FINDINGS = 1
    USAGE = 2
    TARGET = 3
    INTERNAL = 4
    INTERRUPTED = 130


class ExportdoctorError(Exception):
    """An error that is told in one line: what was wrong and what was found, then what to do."""

    exit_code = ExitCode.INTERNAL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def line(self) -> str:
        """The message and the hint on one line."""
        text = f"{self.message}. {self.hint}" if self.hint else self.message
        return " ".join(text.split())


class UsageError(ExportdoctorError):
    """What was asked for does not exist or does not fit: a preset, a part, a size, a file."""

    exit_code = ExitCode.USAGE


class TargetError(ExportdoctorError):
    """The target does not build, or its eager forward fails: `stack` holds its own traceback, one line each."""

    exit_code = ExitCode.TARGET

    def __init__(self, message: str, *, hint: str = "", stack: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.stack = stack


class StoreError(ExportdoctorError):
    """A run's folder cannot be read or written."""

    exit_code = ExitCode.USAGE


class WorkerLost(ExportdoctorError):
    """A worker process ended without an answer; the pool turns it into an outcome where a probe was in flight."""

"""Errors that a user may see, each with a hint and an exit code.

A failing export is a result, not an error; these are the cases in which there is nothing to diagnose.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of the process."""

    EXPORTS = 0
    FINDINGS = 1
    USAGE = 2
    TARGET = 3
    INTERNAL = 4
    INTERRUPTED = 130


class ExportdoctorError(Exception):
    """An error printed in one line: what is wrong, then what to do (`hint`)."""

    exit_code = ExitCode.INTERNAL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def line(self) -> str:
        """The message and the hint on one line."""
        end = "" if self.message.rstrip().endswith((".", "!", "?", "…")) else "."
        text = f"{self.message}{end} {self.hint}" if self.hint else self.message
        return " ".join(text.split())


class UsageError(ExportdoctorError):
    """The request is invalid: a preset, part, size or file does not exist or does not fit."""

    exit_code = ExitCode.USAGE


class TargetError(ExportdoctorError):
    """The target does not build, or its eager forward fails: `stack` holds its own traceback, one line each."""

    exit_code = ExitCode.TARGET

    def __init__(self, message: str, *, hint: str = "", stack: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.stack = stack


class UnreadableCheckpointError(TargetError):
    """A file of the checkpoint cannot be read, whatever the model."""


class NoPartError(TargetError):
    """The model has no such part: it takes other inputs, or has no such submodule."""


class MissingPackageError(TargetError):
    """The target needs a package that is not installed."""


class StoreError(ExportdoctorError):
    """A run's folder cannot be read or written."""

    exit_code = ExitCode.USAGE


class WorkerFailed(ExportdoctorError):
    """Code of exportdoctor failed in a worker process; `stack` is its traceback, one line each."""

    def __init__(self, message: str, *, stack: tuple[str, ...]) -> None:
        super().__init__(message, hint="This is a bug in exportdoctor: please report it.")
        self.stack = stack


MORE_PROCESSES = "Allow more processes (`ulimit -u`), or end others"
"""What to do where the system starts no further process or thread."""


class WorkerLost(ExportdoctorError):
    """A worker process ended without a reply; the pool turns it into an outcome if a probe was running."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'a' or 'b'? ` for the names that come near `name`, ignoring case; empty if none does."""
    from difflib import get_close_matches

    spelled = {each.casefold(): each for each in known}
    near = [repr(spelled[match]) for match in get_close_matches(name.casefold(), spelled, n=3, cutoff=0.5)]
    return f"Did you mean {' or '.join(near)}? " if near else ""

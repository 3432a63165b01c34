"""Turns an exception of the target's own code into a `TargetError` with its stack."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from exportdoctor.core.errors import ExportdoctorError, TargetError
from exportdoctor.core.failure.frames import is_our_file
from exportdoctor.core.failure.messages import first_line


@contextmanager
def blame_target(what: str, *, hint: str = "") -> Iterator[None]:
    """Raise what the target's code raises as a `TargetError`: `what`, the exception, and its frames."""
    try:
        yield
    except ExportdoctorError:
        raise
    except (Exception, SystemExit) as error:
        said = ": ".join(filter(None, (what, type(error).__name__, first_line(error))))
        raise TargetError(said, hint=hint, stack=own_stack(error)) from error


def own_stack(error: BaseException) -> tuple[str, ...]:
    """One line for each frame that is not ours, outermost first, then the exception itself."""
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if not (is_our_file(frame.filename) or frame.filename.startswith("<frozen"))]
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}" for frame in frames]
    exception = (line.rstrip() for line in traceback.format_exception_only(error))
    return (*(line.rstrip(": ") for line in lines), *exception)

"""The only place that turns an exception of the target's own code into a `TargetError` with its stack."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exportdoctor.core.errors import ExportdoctorError, TargetError

_OUR_FOLDER = str(Path(__file__).resolve().parent)


@contextmanager
def blame_target(what: str, *, hint: str = "") -> Iterator[None]:
    """Raise what the target's code raises as a `TargetError`: `what`, the exception, and its frames."""
    try:
        yield
    except ExportdoctorError:
        raise
    except (Exception, SystemExit) as error:
        lines = str(error).strip().splitlines()
        said = ": ".join([what, type(error).__name__, *lines[:1]])
        raise TargetError(said, hint=hint, stack=own_stack(error)) from error


def own_stack(error: BaseException) -> tuple[str, ...]:
    """One line for each frame that is not ours, outermost first, then the exception itself."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame)]
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}" for frame in frames]
    return (*(line.rstrip(": ") for line in lines), *_last_lines(error))


def _last_lines(error: BaseException) -> list[str]:
    return [line.rstrip() for line in traceback.format_exception_only(error)]


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith((_OUR_FOLDER, "<frozen importlib"))

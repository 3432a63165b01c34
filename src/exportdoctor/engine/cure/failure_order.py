"""The only place that says whether a failure comes later in the forward than another. Pure, of two outcomes."""

from __future__ import annotations

from exportdoctor.core.outcome import Failure, Frame, Outcome
from exportdoctor.engine.verdicts.diagnosis import kind_of


def is_later_failure(before: Outcome, after: Outcome, *, exporter: str) -> bool:
    """Whether the second failure comes later in the forward.

    A later line of the same function says so; else that more submodules had been entered, or as many and more nodes
    traced, for a shim may also move work out of the graph. Where no graph tells, a line of a forward must have failed.
    """
    if kind_of(after, exporter=exporter).is_found_after_tracing:
        return True
    one, other = before.failure, after.failure
    if one is None or other is None:
        return other is not None
    lines = _lines_apart(one, other)
    if lines > 0:
        return True
    if one.entered is not None and other.entered is not None and one.entered != other.entered:
        return other.entered > one.entered
    if one.traced is not None and other.traced is not None:
        return lines == 0 and other.traced > one.traced
    return other.traced is not None or other.deepest_module is not None


def _lines_apart(one: Failure, other: Failure) -> int:
    """By how many lines the second failure is further down, in the outermost function where they part; 0 = unknown."""
    for first, second in zip(_own(one), _own(other), strict=False):
        if (first.file, first.function) != (second.file, second.function):
            return 0
        if first.line != second.line:
            return second.line - first.line
    return 0


def _own(failure: Failure) -> list[Frame]:
    """The frames of the user's code and its libraries, outermost first."""
    return [frame for frame in failure.frames if frame.user]

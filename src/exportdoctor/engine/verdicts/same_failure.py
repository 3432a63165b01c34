"""Whether two attempts at one module met the same disease, though other dimensions were dynamic. Pure functions."""

from __future__ import annotations

from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.outcome import Failure, Outcome
from exportdoctor.engine.verdicts.diagnosis import kind_of


def same_disease(one: Outcome, other: Outcome, *, exporter: str) -> bool:
    """By kind and by the user's line that is to blame, or that made the guard; by the signature where there is neither.

    The message is left out where a line is blamed: with fewer dynamic dimensions it tells of other symbols.
    """
    if one.passed or other.passed or one.status != other.status:
        return False
    if one.failure is None or other.failure is None:
        return one.signal == other.signal
    if kind_of(one, exporter=exporter) != kind_of(other, exporter=exporter):
        return False
    lines = _line(one.failure), _line(other.failure)
    return lines[0] == lines[1] if any(lines) else signature_of(one) == signature_of(other)


def _line(failure: Failure) -> tuple[object, ...]:
    frame = failure.culprit or failure.guard
    if frame is None:
        return ()
    return (*(fact.type for fact in failure.exceptions), frame.file, frame.line, frame.function, frame.expression)

"""What is known of a failure beyond its stack: its kind, its explanation, upstream issues."""

from __future__ import annotations

from collections.abc import Mapping

from exportdoctor.core.finding import KnownIssueRecord
from exportdoctor.core.outcome import Failure, Outcome


def kind_of(outcome: Outcome, *, exporter: str) -> str:
    return "python_error"


def explanation_of(kind: str) -> str:
    return ""


def op_of(failure: Failure) -> str | None:
    return failure.op.name if failure.op and failure.op.raised else None


def known_of(
    outcome: Outcome, *, exporter: str, dynamic: bool, versions: Mapping[str, str]
) -> tuple[KnownIssueRecord, ...]:
    return ()

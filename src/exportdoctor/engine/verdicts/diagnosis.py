"""What is known of a failure beyond its stack: its kind, its operator, upstream issues."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from exportdoctor.core.failure import known_issues as known
from exportdoctor.core.failure.classify import classify
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.known_issues import KnownMatch
from exportdoctor.core.finding import KnownIssueRecord
from exportdoctor.core.outcome import ExceptionFact, Failure, Frame, Outcome


def kind_of(outcome: Outcome, *, exporter: str) -> FailureKind:
    """The kind of the failure that `outcome` shows."""
    failure = outcome.failure or Failure(stage="export", exceptions=())
    return classify(
        stage=failure.stage,
        exporter=exporter,
        exceptions=failure.exceptions,
        frames=failure.frames,
        status=outcome.status,
        op=failure.op.name if failure.op else None,
        custom_ops=failure.custom_ops,
    )


def op_of(failure: Failure) -> str | None:
    """The operator at fault: one that raised. None where the culprit is Python's, such as a comparison of symbols."""
    return failure.op.name if failure.op is not None and failure.op.raised else None


def known_of(
    outcome: Outcome, *, exporter: str, dynamic: bool, versions: Mapping[str, str]
) -> tuple[KnownIssueRecord, ...]:
    """Upstream issues that tell of this failure, the likeliest first."""
    failure = outcome.failure
    if failure is None:
        return ()
    found = _matches(
        failure.exceptions, failure.frames, failure.stage, exporter, dynamic=dynamic, versions=tuple(versions.items())
    )
    through_models = any("/transformers/" in frame.file for frame in failure.frames)
    return tuple(
        KnownIssueRecord(
            id=match.id,
            link=match.link,
            fixed_in=match.fixed_in,
            title=match.title,
            cause=match.cause,
            workaround=match.workaround,
            elsewhere=_is_of_models(match.link) and not through_models,
        )
        for match in found
    )


@lru_cache(maxsize=512)  # a finding is told again whenever more is known of it
def _matches(
    exceptions: tuple[ExceptionFact, ...],
    frames: tuple[Frame, ...],
    stage: str,
    exporter: str,
    *,
    dynamic: bool,
    versions: tuple[tuple[str, str], ...],
) -> tuple[KnownMatch, ...]:
    return known.match(
        exceptions=exceptions, frames=frames, stage=stage, exporter=exporter, dynamic=dynamic, versions=dict(versions)
    )


def _is_of_models(link: str) -> bool:
    """Whether an issue is one of the model libraries', not of torch or a runtime, which every failure runs through."""
    return link.startswith("huggingface/")

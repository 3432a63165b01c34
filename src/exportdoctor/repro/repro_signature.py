"""What a candidate script shows, as the verdict on it."""

from __future__ import annotations

from exportdoctor.core.failure.identity import NameFreeSignature as Trait
from exportdoctor.core.failure.identity import name_free_signature as trait_of
from exportdoctor.core.failure.identity import outermost_operation as operation
from exportdoctor.core.failure.messages import without_names as anonymous
from exportdoctor.core.outcome import Outcome
from exportdoctor.reduce import Verdict

__all__ = ["Trait", "anonymous", "operation", "trait_of", "verdict"]


def verdict(wanted: Trait, outcome: Outcome, *, exporter: str) -> Verdict:
    """Yes for the same failure, no only for a pass: another failure is unknown."""
    if outcome.passed:
        return Verdict.NO
    if outcome.failure is not None and outcome.failure.stage == "capture":
        return Verdict.UNKNOWN
    return Verdict.YES if trait_of(outcome, exporter=exporter) == wanted else Verdict.UNKNOWN

"""What the answers to a trial say together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exportdoctor.core.records.size_domain import SizeTrial


def is_right(trial: SizeTrial) -> bool:
    return all(answer.outcome == "right" for answer in trial.answers)


def is_compared(trial: SizeTrial) -> bool:
    """Whether the first stage answered what eager answers."""
    return trial.answers[0].outcome in ("right", "wrong")


def outcomes_of(trial: SizeTrial) -> tuple[Any, ...]:
    """What is told of a trial, without its inputs."""
    return trial.condition, tuple(answer.outcome for answer in trial.answers)


def dropped_conditions(trials: Sequence[SizeTrial]) -> tuple[int, ...]:
    """The conditions by which the first stage refuses what a later one answers."""
    found = {
        trial.condition
        for trial in trials
        if trial.condition >= 0
        and trial.answers[0].outcome == "refuses"
        and any(answer.outcome != "refuses" for answer in trial.answers[1:])
    }
    return tuple(sorted(found))

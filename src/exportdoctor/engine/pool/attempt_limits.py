"""How long an attempt may take and how much memory: measured on the target itself where the user does not say."""

from __future__ import annotations

from dataclasses import dataclass

from exportdoctor.core.limits import (
    FORWARDS_PER_ATTEMPT,
    LONGEST_ATTEMPTS_PER_ATTEMPT,
    LONGEST_OF_SHORT,
    SHORT_FORWARDS_PER_ATTEMPT,
    SHORTEST_ATTEMPT,
    UNMEASURED_ATTEMPT,
)
from exportdoctor.core.records.outcome import Outcome


@dataclass
class AttemptLimits:
    """`fixed` is the user's own time-out in seconds. `memory_mb`: additional memory of one attempt, in MiB."""

    fixed: float | None
    memory_mb: float
    forward_seconds: float = 0.0
    longest_seconds: float | None = None
    whole_passed: bool = False

    @property
    def timeout(self) -> float:
        """Ten times the longest finished attempt; never under 60 seconds.

        Until a whole part has passed also 300 eager forwards, at most ten minutes: a part that fails early, or a
        submodule, says little of what its export takes with a cure. Before any attempt has finished sixty forwards in
        any case.
        """
        if self.fixed is not None:
            return self.fixed
        whole = min(SHORT_FORWARDS_PER_ATTEMPT * self.forward_seconds, LONGEST_OF_SHORT)
        if self.longest_seconds is None:
            return max(SHORTEST_ATTEMPT, FORWARDS_PER_ATTEMPT * self.forward_seconds, whole)
        measured = LONGEST_ATTEMPTS_PER_ATTEMPT * self.longest_seconds
        return max(SHORTEST_ATTEMPT, measured, 0.0 if self.whole_passed else whole)

    @property
    def early_timeout(self) -> float:
        """For an attempt that begins before its part is captured: its proper limit is found while it runs."""
        return self.fixed if self.fixed is not None else max(self.timeout, UNMEASURED_ATTEMPT)

    def learn(self, outcome: Outcome, *, whole: bool) -> None:
        """Take the time of an attempt as a measure; `whole`: it was one of a part, not of a submodule in it."""
        if outcome.status.is_conclusive:
            self.longest_seconds = max(self.longest_seconds or 0.0, outcome.seconds)
            self.whole_passed = self.whole_passed or (whole and outcome.passed)

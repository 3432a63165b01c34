"""How long an attempt may take and how much memory: measured on the target itself where the user does not say."""

from __future__ import annotations

from dataclasses import dataclass

from exportdoctor.core.limits import (
    FIRST_ATTEMPTS_PER_ATTEMPT,
    FORWARDS_PER_ATTEMPT,
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
    first_seconds: float | None = None

    @property
    def timeout(self) -> float:
        """Ten times the first finished attempt; never under 60 seconds.

        Before that 300 eager forwards, at most ten minutes, but sixty forwards in any case.
        """
        if self.fixed is not None:
            return self.fixed
        if self.first_seconds is None:
            short = min(SHORT_FORWARDS_PER_ATTEMPT * self.forward_seconds, LONGEST_OF_SHORT)
            return max(SHORTEST_ATTEMPT, FORWARDS_PER_ATTEMPT * self.forward_seconds, short)
        return max(SHORTEST_ATTEMPT, FIRST_ATTEMPTS_PER_ATTEMPT * self.first_seconds)

    @property
    def early_timeout(self) -> float:
        """For an attempt that begins before its part is captured: its proper limit is found while it runs."""
        return self.fixed if self.fixed is not None else max(self.timeout, UNMEASURED_ATTEMPT)

    def learn(self, outcome: Outcome) -> None:
        """Take the first attempt's own time as the measure; a failure says less of it than a pass does."""
        if outcome.status.is_conclusive:
            longest = self.first_seconds or 0.0
            self.first_seconds = outcome.seconds if outcome.passed and not longest else max(longest, outcome.seconds)

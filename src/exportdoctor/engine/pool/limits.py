"""How long an attempt may take and how much memory: found from the target itself where nobody says."""

from __future__ import annotations

from dataclasses import dataclass

from exportdoctor.core.outcome import Outcome

SHORTEST = 60.0
_FORWARDS = 60.0
_FIRST_ATTEMPTS = 10.0


@dataclass
class Limits:
    """`fixed` is the user's own time-out in seconds. `memory_mb` bounds what one attempt may take on top, in MiB."""

    fixed: float | None
    memory_mb: float
    forward_seconds: float = 0.0
    first_seconds: float | None = None

    @property
    def timeout(self) -> float:
        """Ten times the first finished attempt, before that sixty eager forwards; never under 60 seconds."""
        if self.fixed is not None:
            return self.fixed
        if self.first_seconds is None:
            return max(SHORTEST, _FORWARDS * self.forward_seconds)
        return max(SHORTEST, _FIRST_ATTEMPTS * self.first_seconds)

    def learn(self, outcome: Outcome) -> None:
        """Take the first attempt's own time as the measure; a failure says less of it than a pass does."""
        if outcome.status.is_conclusive:
            longest = self.first_seconds or 0.0
            self.first_seconds = outcome.seconds if outcome.passed and not longest else max(longest, outcome.seconds)

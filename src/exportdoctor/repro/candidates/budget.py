"""What a reduction may cost, and the clock that measures it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from exportdoctor.repro.candidates.candidate_runner import CandidateRunner
from exportdoctor.repro.script import code_lines

LONG = 25
"""Lines of code."""
_BUSY = 0.9  # seconds of the processor that candidates get in a second of a quiet machine, at least


@dataclass(frozen=True, kw_only=True)
class ReductionBudget:
    """Wall seconds, and candidates.

    On a machine that does other things too it may take up to `at_most` wall seconds, until the candidates and this
    process, which writes them, have had as much of the processor as `seconds` give them on a quiet one; or `for_long`
    seconds of it, as long as the script has more than 25 lines.
    """

    seconds: float = 60.0
    candidates: int = 2000
    at_most: float = 0.0
    for_long: float = 0.0


class BudgetClock:
    """Measures the time of a reduction, from when it is made on."""

    def __init__(self, budget: ReductionBudget, runner: CandidateRunner) -> None:
        self.budget = budget
        self._runner = runner
        self._begun, self._worked = time.monotonic(), self._cpu_seconds

    def is_over(self, share: float = 1.0, *, source: str = "") -> bool:
        """Whether that share of the time is over, for a script as long as `source`."""
        seconds, taken = share * self.budget.seconds, time.monotonic() - self._begun
        if taken <= seconds:
            return False
        enough = seconds * _BUSY
        if code_lines(source) > LONG:
            enough = max(enough, share * self.budget.for_long)
        return taken > share * self.budget.at_most or self._cpu_seconds - self._worked > enough

    @property
    def _cpu_seconds(self) -> float:
        return self._runner.cpu_seconds + time.process_time()

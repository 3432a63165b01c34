"""How long and with how much memory each kind of failure may run, at each step of a repro: seconds and MiB."""

from __future__ import annotations

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.limits import SCRIPT_MB, SCRIPT_SECONDS, SHORTEST_ATTEMPT
from exportdoctor.core.records.outcome import OutcomeStatus


def reproduction_limits(status: OutcomeStatus, timeout: float) -> tuple[float, float]:
    """Seconds and MiB for the attempt that shows a failure again, which took up to `timeout` seconds in the scan."""
    match status:
        case OutcomeStatus.CRASHED:
            return 60.0, 4000.0
        case OutcomeStatus.TIMED_OUT:
            return 15.0, 4000.0
        case OutcomeStatus.OUT_OF_MEMORY:
            return 60.0, 600.0
        case _:
            return max(SHORTEST_ATTEMPT, timeout), 4000.0


def candidate_limits(kind: FailureKind) -> tuple[float, float]:
    """Seconds and MiB for each candidate of a reduction."""
    seconds = 4.0 if kind is FailureKind.TIMEOUT else 30.0
    return seconds, 400.0 if kind is FailureKind.OUT_OF_MEMORY else 2500.0


def script_limits(kind: FailureKind) -> tuple[float, float]:
    """Seconds and MiB for a finished script."""
    # a script that does not hang ends within a tenth of 40 s
    seconds = 40.0 if kind is FailureKind.TIMEOUT else SCRIPT_SECONDS
    return seconds, 900.0 if kind is FailureKind.OUT_OF_MEMORY else SCRIPT_MB

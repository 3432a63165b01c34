"""The limits of time and memory that exportdoctor sets by itself, in seconds and MiB; process/ enforces them."""

from __future__ import annotations

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.records.outcome import OutcomeStatus

# An attempt of a scan, unless the user says how long it may take
SHORTEST_ATTEMPT = 60.0
FORWARDS_PER_ATTEMPT = 60.0
"""Until a first attempt has finished, the limit in eager forwards."""
FIRST_ATTEMPTS_PER_ATTEMPT = 10.0
"""Afterwards, the limit in durations of that first attempt."""
UNMEASURED_ATTEMPT = 600.0
"""An attempt that begins before anything of its target was measured."""
PATIENCE = 5.0
"""How much longer an attempt may take on the clock as long as its processor time is within the limit."""

# What hardly uses the processor for so long hangs
IDLE_CANDIDATE = 1.2
"""In a forked copy of a warm process, which has nothing to load."""
IDLE_ATTEMPT = 5.0

# A candidate script of a repro
CANDIDATE_SECONDS = 20.0
CANDIDATE_MB = 1000.0
SHORTEST_CANDIDATE = 8.0

# A finished repro in a fresh interpreter, which has torch to import
SCRIPT_SECONDS = 120.0
SCRIPT_MB = 1500.0


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
    seconds = (
        40.0 if kind is FailureKind.TIMEOUT else SCRIPT_SECONDS
    )  # one that does not hang ends within a tenth of that
    return seconds, 900.0 if kind is FailureKind.OUT_OF_MEMORY else SCRIPT_MB

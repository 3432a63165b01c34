"""An attempt in a child of its own: what the worker knows of it while it runs."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import msgspec

from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.worker.attempt.fast_export import NextAttempt
from exportdoctor.worker.child import Child, ChildEnd


@dataclass
class AttemptChild:
    """An attempt in a child of its own; `again` is how one is made again whose outcome was in doubt.

    `card` is the one of the placement's that it may use, `card_mb` how much of it, in MiB.
    """

    child: Child
    probe: Probe
    log: str | None
    again: NextAttempt | None
    card: int = 0
    card_mb: float = 0.0

    def next_attempt(self, end: ChildEnd) -> NextAttempt | None:
        """How it is to be made again, if its outcome is in doubt. Each way is taken at most once, because code of the
        target may end its process with the same exit codes."""
        return next((one for one in NextAttempt if one == end.code and one > (self.again or 0)), None)

    def outcome(self, end: ChildEnd) -> Outcome:
        """Its outcome, with the log that it left; one that passes leaves none."""
        outcome = end.outcome(self.probe.id)
        if outcome.passed:
            self.remove_log()
            return outcome
        return msgspec.structs.replace(outcome, log=self.log)

    def remove_log(self) -> None:
        """Remove what it printed."""
        if self.log:
            with contextlib.suppress(OSError):
                os.remove(self.log)

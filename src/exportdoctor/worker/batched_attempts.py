"""A forked child that attempts plain layers one after the other: a fork costs more than the export of such a layer.

It ends with the first attempt that does not pass, which is then made in a child of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.worker.child import Child, fork

Attempt = Callable[[Probe], Outcome | None]


@dataclass(frozen=True)
class BatchChild:
    """The child, and the two streams to speak with it."""

    child: Child
    probes: IO[bytes]
    outcomes: IO[bytes]

    @property
    def pid(self) -> int:
        """The child's process."""
        return self.child.pid

    @property
    def descriptors(self) -> tuple[int, int]:
        """What other children must close."""
        return self.probes.fileno(), self.outcomes.fileno()

    def attempt(self, probe: Probe) -> Outcome | None:
        """Its outcome if it passes; None if it does not, and the child has ended. Waits for it."""
        with contextlib.suppress(OSError, StoreError):
            self.probes.write(encode(probe) + b"\n")
            self.probes.flush()
            outcome: Outcome = decode(self.outcomes.readline(), Outcome)
            return outcome
        return None

    def close(self) -> None:
        """Kill it."""
        for stream in (self.probes, self.outcomes):
            with contextlib.suppress(OSError):
                stream.close()
        self.child.end()


def start_batch(attempt: Attempt, *, close: tuple[int, ...]) -> BatchChild:
    """Fork it from this process, as it is now. `close` are descriptors that it must not hold."""
    reader, writer = os.pipe()
    child = fork(lambda pipe: _attempt_all(attempt, reader, pipe), close=(writer, *close))
    os.close(reader)
    os.set_blocking(child.pipe, True)
    return BatchChild(child, os.fdopen(writer, "wb"), os.fdopen(child.pipe, "rb"))


def _attempt_all(attempt: Attempt, reader: int, pipe: int) -> bytes:
    """Answer each probe that passes, up to the first that does not."""
    with os.fdopen(reader, "rb") as probes, os.fdopen(os.dup(pipe), "wb") as outcomes:
        for line in probes:
            outcome = attempt(decode(line, Probe))
            if outcome is None or not outcome.passed:
                break
            outcomes.write(encode(outcome) + b"\n")
            outcomes.flush()
    return b""

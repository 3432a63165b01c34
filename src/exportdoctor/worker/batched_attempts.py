"""A forked child that attempts harmless layers one after the other: a fork costs more than the export of such a layer.

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
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.worker.attempt_child import become_child, clear_group

Work = Callable[[Probe], Outcome | None]


@dataclass(frozen=True)
class Aside:
    """The child, and the two ends to speak with it, which other children must not hold."""

    pid: int
    asks: IO[bytes]
    answers: IO[bytes]

    @property
    def descriptors(self) -> tuple[int, int]:
        """What other children must close."""
        return self.asks.fileno(), self.answers.fileno()

    def passed(self, probe: Probe) -> Outcome | None:
        """Its outcome where it passes; None where it does not, and the child has ended. Waits for it."""
        with contextlib.suppress(OSError, StoreError):
            self.asks.write(encode(probe) + b"\n")
            self.asks.flush()
            outcome: Outcome = decode(self.answers.readline(), Outcome)
            return outcome
        return None

    def end(self) -> None:
        """Kill it."""
        clear_group(self.pid)
        for stream in (self.asks, self.answers):
            with contextlib.suppress(OSError):
                stream.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def aside(work: Work, *, close: tuple[int, ...]) -> Aside:
    """Fork it from this process, as it is now. `close` are descriptors that it must not hold."""
    asked, asks = os.pipe()
    answers, answered = os.pipe()
    pid = os.fork()
    if pid == 0:
        _serve(work, asked=asked, answered=answered, close=(asks, answers, *close))
    os.close(asked)
    os.close(answered)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # the child does it too: whoever is first
    return Aside(pid, os.fdopen(asks, "wb"), os.fdopen(answers, "rb"))


def _serve(work: Work, *, asked: int, answered: int, close: tuple[int, ...]) -> None:
    """Never returns."""
    try:
        become_child(log=None, close=close)
        with os.fdopen(asked, "rb") as questions, os.fdopen(answered, "wb") as answers:
            for line in questions:
                outcome = work(decode(line, Probe))
                if outcome is None or not outcome.passed:
                    break
                answers.write(encode(outcome) + b"\n")
                answers.flush()
    finally:
        os._exit(0)

"""Forked children that attempt plain layers one after the other: a fork costs more than the export of such a layer.

A child ends with the first attempt that does not pass, which is then made in a child of its own. There is one for each
attempt that runs at the same time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.worker.child import Child, fork

Attempt = Callable[[Probe], Outcome | None]


@dataclass(eq=False)  # each stands for one process
class SharedChild:
    """The child, the two streams to speak with it, and the probe that it attempts now."""

    child: Child
    probes: IO[bytes]
    outcomes: IO[bytes]
    probe: Probe | None = None

    @property
    def pid(self) -> int:
        """The child's process."""
        return self.child.pid

    @property
    def descriptors(self) -> tuple[int, int]:
        """What other children must close. The second can be read once an attempt has ended."""
        return self.probes.fileno(), self.outcomes.fileno()

    def start(self, probe: Probe) -> None:
        """Attempt it; `take` gives its outcome."""
        self.probe = probe
        with contextlib.suppress(OSError):
            self.probes.write(encode(probe) + b"\n")
            self.probes.flush()

    def take(self) -> tuple[Probe, Outcome | None]:
        """The probe and its outcome if it passes; None if it does not, and the child has ended. Waits for it."""
        assert self.probe is not None
        probe, self.probe = self.probe, None
        outcome: Outcome | None = None
        with contextlib.suppress(OSError, StoreError):
            outcome = decode(self.outcomes.readline(), Outcome)
        return probe, outcome

    def close(self) -> None:
        """Kill it."""
        for stream in (self.probes, self.outcomes):
            with contextlib.suppress(OSError):
                stream.close()
        self.child.end()


@dataclass
class SharedChildren:
    """The children that are there now."""

    children: list[SharedChild] = field(default_factory=list)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What other children must close."""
        return tuple(descriptor for child in self.children for descriptor in child.descriptors)

    def free(self) -> SharedChild | None:
        """A child that attempts nothing now."""
        return next((child for child in self.children if child.probe is None), None)

    def add(self, attempt: Attempt, *, close: tuple[int, ...]) -> SharedChild:
        """Fork another one from this process, as it is now. `close` are descriptors that it must not hold."""
        reader, writer = os.pipe()
        forked = fork(lambda pipe: _attempt_all(attempt, reader, pipe), close=(writer, *close))
        os.close(reader)
        os.set_blocking(forked.pipe, True)
        child = SharedChild(forked, os.fdopen(writer, "wb"), os.fdopen(forked.pipe, "rb"))
        self.children.append(child)
        return child

    def take(self, child: SharedChild) -> tuple[Probe, Outcome | None] | None:
        """The probe of a child that can be read, and its outcome; None where it attempts nothing or is gone.

        A child whose probe did not pass is gone then.
        """
        if child not in self.children:
            return None
        told = child.take() if child.probe is not None else None
        if told is None or told[1] is None:
            self.end(child)
        return told

    def end(self, child: SharedChild) -> None:
        """Kill it."""
        self.children.remove(child)
        child.close()

    def end_all(self) -> None:
        """Kill all of them, without an outcome for what they attempt."""
        for child in list(self.children):
            self.end(child)


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

"""One forked child for each attempt: a fresh state, and a death that harms nobody.

The warm parent never attempts anything itself. It reads the child's outcome from a pipe, reaps it, and clears away
whatever the child has started.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.outcome import Outcome, OutcomeStatus
from exportdoctor.core.probe import Probe
from exportdoctor.worker.process_setup import die_with_parent, lead_a_group, send_output_to, write_stacks_to

IN_DOUBT = 75
"""The exit code of a child that has no answer, and asks to be replaced: EX_TEMPFAIL of sysexits.h."""


@dataclass
class Child:
    """A running attempt. Of a `final` one no doubt is heard."""

    probe: Probe
    pid: int
    pipe: int
    log: str | None
    final: bool = False
    started: float = field(default_factory=time.perf_counter)
    data: bytearray = field(default_factory=bytearray)

    def read(self) -> bool:
        """Take what the pipe holds; False at its end."""
        while True:
            try:
                chunk = os.read(self.pipe, 1 << 16)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self.data.extend(chunk)

    def ended(self, status: int, peak_kb: int) -> Outcome:
        """The outcome: the child's own word if it is whole, else the way it died."""
        self.read()
        os.close(self.pipe)
        clear_group(self.pid)
        with contextlib.suppress(StoreError):
            outcome: Outcome = decode(bytes(self.data), Outcome)
            return _with(outcome, peak_kb, self.log)
        sign = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else None
        return Outcome(
            probe=self.probe.id,
            status=OutcomeStatus.CRASHED,
            signal=sign or f"exit code {os.waitstatus_to_exitcode(status)}",
            seconds=round(time.perf_counter() - self.started, 4),
            peak_rss_mb=round(peak_kb / 1024, 1),
            stages={"export": "fail"},
            log=self.log,
        )


def _with(outcome: Outcome, peak_kb: int, log: str | None) -> Outcome:
    peak = round(peak_kb / 1024, 1)
    return msgspec.structs.replace(outcome, peak_rss_mb=peak, log=log if not outcome.passed else None)


def fork(probe: Probe, work: Callable[[Probe], Outcome | None], *, log: str | None, close: tuple[int, ...]) -> Child:
    """Start `work(probe)` in a child of this process. `close` are descriptors that the child must not hold.

    Where it returns None, the child ends with the code IN_DOUBT.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(probe, work, log=log, writer=writer, close=(reader, *close))
    os.close(writer)
    os.set_blocking(reader, False)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # the child does it too: whoever is first
    return Child(probe, pid, reader, log)


def _child(
    probe: Probe, work: Callable[[Probe], Outcome | None], *, log: str | None, writer: int, close: tuple[int, ...]
) -> None:
    """Never returns: the child must not run its parent's code to the end."""
    code = 70
    try:
        become_child(log=log, close=close)
        outcome = work(probe)
        data = memoryview(encode(outcome) if outcome is not None else b"")
        while data:
            data = data[os.write(writer, data) :]
        code = 0 if outcome is not None else IN_DOUBT
    finally:
        os._exit(code)


def become_child(*, log: str | None, close: tuple[int, ...]) -> None:
    """The first steps of a fork: it finalises nothing, dies with its parent, and holds nothing of its parent's."""
    gc.freeze()  # what the parent built is the parent's to finalise; the pages stay shared, too
    lead_a_group()
    die_with_parent()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for descriptor in close:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    write_stacks_to(send_output_to(log))


def clear_group(pid: int) -> None:
    """Kill what is left of a child's process group."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)

"""A forked child of a warm process: a fresh copy of its state, which may die without harm to its parent.

The warm parent attempts nothing itself. It reads what the child writes from a pipe, reaps it, and kills whatever the
child has started.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from exportdoctor.core.codec import decode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.process.descendants import adopt_orphans, kill_other_children, own_children
from exportdoctor.process.group import die_with_parent, kill_group, lead_group, name_exit
from exportdoctor.process.supervise import TICK, Limits, Supervisor, resident_mb
from exportdoctor.worker.standard_streams import leave, send_output_to, write_stacks_to

Work = Callable[[int], bytes | int]
"""What a child does: it is given the descriptor of its pipe and returns what else to write there; or, if it has no
answer, the exit code that says why."""


@dataclass(frozen=True, kw_only=True)
class ChildEnd:
    """How a child ended and all that it wrote. `code` is as `subprocess` gives it; `peak_mb` is in MiB."""

    data: bytes
    code: int
    seconds: float
    peak_mb: float

    def outcome(self, probe: str, *, killed: OutcomeStatus | None = None) -> Outcome:
        """The outcome that it wrote, if complete; else one that says how it died, or why it was `killed`."""
        if killed is None:
            with contextlib.suppress(StoreError):
                written: Outcome = decode(self.data, Outcome)
                return msgspec.structs.replace(written, peak_rss_mb=self.peak_mb)
        return Outcome(
            probe=probe,
            status=killed or OutcomeStatus.CRASHED,
            signal=None if killed else name_exit(self.code),
            seconds=self.seconds,
            peak_rss_mb=self.peak_mb,
            stages={"export": "fail"},
        )


_OBJECTS_BETWEEN_COLLECTIONS = 10_000

_forked: set[int] = set()
_expected: set[int] = set()


def expect_children() -> None:
    """What this process has started until now may stay; what comes after it is what a child has left behind."""
    _expected.clear()
    _expected.update(own_children() - _forked)


@dataclass
class Child:
    """A running child, and the end of its pipe that it writes to."""

    pid: int
    pipe: int
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

    def poll(self) -> ChildEnd | None:
        """Its end, if it has ended; None also later."""
        return self._reap(os.WNOHANG)

    def wait(self) -> ChildEnd:
        """Its end. To be called once."""
        end = self._reap(0)
        assert end is not None
        return end

    def wait_within(self, limits: Limits) -> tuple[ChildEnd, OutcomeStatus | None]:
        """Wait for its end; returns it with the reason for a kill. Memory counts on top of this process's own."""
        supervisor = Supervisor(self.pid, limits, baseline_mb=resident_mb(os.getpid()))
        end: ChildEnd | None = None
        while end is None and (not select.select([self.pipe], [], [], TICK)[0] or self.read()):
            supervisor.look()
            end = self.poll()  # what it has started may hold its pipe open
        reason = supervisor.kill_reason
        return end or self.wait(), reason.status if reason else None

    def end(self) -> int | None:
        """Kill and reap it, and leave its pipe as it is; its exit status, as `subprocess` gives it, if it is known."""
        kill_group(self.pid)
        _forked.discard(self.pid)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return None

    def _reap(self, options: int) -> ChildEnd | None:
        pid, status, usage = os.wait4(self.pid, options)
        if not pid:
            return None
        self.read()
        os.close(self.pipe)
        kill_group(self.pid)
        _forked.discard(self.pid)
        kill_other_children(_forked | _expected)
        seconds = round(time.perf_counter() - self.started, 4)
        code, peak_mb = os.waitstatus_to_exitcode(status), round(usage.ru_maxrss / 1024, 1)
        return ChildEnd(data=bytes(self.data), code=code, seconds=seconds, peak_mb=peak_mb)


def collect_garbage_less_often() -> None:
    """In a child that ends soon: at Python's own pace a 40th of an export is collections."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


def fork(work: Work, *, log: str | None = None, close: tuple[int, ...] = ()) -> Child:
    """Start `work` in a child of this process, which prints to the file `log`.

    `close` are descriptors that the child must not hold.
    """
    reader, writer = os.pipe()
    if not _forked:
        expect_children()
    pid = os.fork()
    if pid == 0:
        _run_child(work, log=log, writer=writer, close=(reader, *close))
    _forked.add(pid)
    os.close(writer)
    os.set_blocking(reader, False)
    lead_group(pid)  # the child does it too: either may be first
    return Child(pid, reader)


def _run_child(work: Work, *, log: str | None, writer: int, close: tuple[int, ...]) -> None:
    """Never returns: the child must not run its parent's code to the end."""
    code, process = 70, os.getpid()
    try:
        _become_child(log=log, close=close)
        result = work(writer)
        if os.getpid() != process:
            return  # the target's code has forked: one of them answers
        data = memoryview(b"" if isinstance(result, int) else result)
        while data:
            data = data[os.write(writer, data) :]
        code = result if isinstance(result, int) else 0
    except BaseException:  # of our own code: the target's exceptions are answers
        traceback.print_exc()
    finally:
        leave(code)


def _become_child(*, log: str | None, close: tuple[int, ...]) -> None:
    """The first steps of a fork: it finalises nothing, dies with its parent, and holds nothing of its parent's."""
    gc.freeze()  # what the parent built is the parent's to finalise; the pages stay shared, too
    _forked.clear()
    _expected.clear()
    lead_group()
    die_with_parent()
    adopt_orphans()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for descriptor in close:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    write_stacks_to(send_output_to(log))

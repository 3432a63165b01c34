"""Keeps one attempt within its limits: its time, which forgives a busy machine, and its memory.

A killed attempt first leaves its stack in its log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec
import psutil

from exportdoctor.core.outcome import Outcome, OutcomeStatus
from exportdoctor.core.probe import Probe
from exportdoctor.engine.pool.crash import with_crash

TICK = 0.1
_PATIENCE = 5.0
_IDLE = 0.8
_GROUP_EVERY = 5  # ticks: looking for an attempt's own children means looking at every process


@dataclass
class Flight:
    """A probe on its way. `fate` is set when it is killed: status, what to call it, and why in a sentence.

    An `early` one runs before its part is captured; nobody is told of it, and it may be thrown away.
    """

    probe: Probe
    future: Future[Outcome]
    pid: int | None = None
    started: float = 0.0
    baseline_mb: float = 0.0
    baseline_cpu: float = 0.0
    fate: tuple[OutcomeStatus, str, str] | None = None
    losses: int = 0
    ticks: int = 0
    idle: int = 0
    early: bool = False
    urgent: bool = False

    def took_off(self, pid: int, *, worker: int) -> None:
        """It runs now, in process `pid`, a child of `worker` or that worker itself."""
        self.pid, self.started = pid, time.monotonic()
        self.baseline_mb = _rss_mb(worker, group=False)
        self.baseline_cpu = _cpu_seconds(pid)

    def ended(self, outcome: Outcome) -> Outcome:
        """The outcome with what is known here: why it was killed, and where a crash happened."""
        if self.fate is not None:
            status, sign, reason = self.fate
            return with_crash(msgspec.structs.replace(outcome, signal=sign), status=status, reason=reason)
        if outcome.status == OutcomeStatus.CRASHED:
            return with_crash(outcome, status=OutcomeStatus.CRASHED, reason="")
        return outcome


def enforce(flight: Flight, *, patient: bool) -> None:
    """Kill a running attempt that is beyond its limits; called every TICK seconds.

    A patient watch measures an attempt that computes by its processor time, up to five times its time-out.
    """
    assert flight.pid is not None
    flight.ticks += 1
    flight.idle += _is_waiting(flight.pid)
    fate = _memory_fate(flight) or _time_fate(flight, patient=patient)
    if fate is not None:
        flight.fate = fate
        _kill(flight.pid)


def _memory_fate(flight: Flight) -> tuple[OutcomeStatus, str, str] | None:
    assert flight.pid is not None
    limit = flight.probe.memory_mb
    grown = _rss_mb(flight.pid, group=flight.ticks % _GROUP_EVERY == 0) - flight.baseline_mb
    if limit is None or grown <= limit:
        return None
    text = f"Killed at {grown:,.0f} MiB: more than the {limit:,.0f} MiB that one attempt may take"
    return OutcomeStatus.OUT_OF_MEMORY, "out of memory", text


def _time_fate(flight: Flight, *, patient: bool) -> tuple[OutcomeStatus, str, str] | None:
    assert flight.pid is not None
    waited, limit = time.monotonic() - flight.started, flight.probe.timeout
    if waited <= limit:
        return None
    if flight.idle > _IDLE * flight.ticks:
        return (
            OutcomeStatus.TIMED_OUT,
            "hang",
            f"Killed after {waited:.0f} s: it was waiting and hardly used the processor",
        )
    if patient and waited <= _PATIENCE * limit and _cpu_seconds(flight.pid) - flight.baseline_cpu <= limit:
        return None
    return OutcomeStatus.TIMED_OUT, "time-out", f"Killed after {waited:.0f} s: it was still computing"


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR1)  # its stack goes into its log
        time.sleep(TICK)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _rss_mb(pid: int, *, group: bool) -> float:
    """Resident memory of a process, of `group` with that of the processes it has started, in MiB."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        total = float(process.memory_info().rss)
        for child in process.children(recursive=True) if group else ():
            with contextlib.suppress(psutil.Error):
                total += float(child.memory_info().rss)
    return total / 2**20


def _is_waiting(pid: int) -> bool:
    """Whether the process sleeps; one that is ready but gets no processor does not."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() in (psutil.STATUS_SLEEPING, psutil.STATUS_DISK_SLEEP, psutil.STATUS_IDLE)
    return False


def _cpu_seconds(pid: int) -> float:
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0

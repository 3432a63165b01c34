"""Keeps a process within its limits. One rule for all: attempts of a scan, candidate scripts, finished repros.

A process is idle where in the last `idle` seconds fewer than one look in five found it, or a process that it has
started, running or with processor time used since the look before. A share and not an unbroken rest: what polls every
few milliseconds is waiting, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal

import psutil

from exportdoctor.core.limits import BUILD, BUILD_SHARE, IDLE_BUILD, OTHER_INPUTS, PATIENCE
from exportdoctor.core.records.outcome import OutcomeStatus
from exportdoctor.process.descendants import kill_marked, new_mark, with_mark
from exportdoctor.process.group import die_with_parent, kill_group
from exportdoctor.process.long_logs import cut_log

TICK = 0.1
"""Seconds between two looks at a process."""
_WORKING_SHARE = 0.2
_AT_WORK = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
_FAMILY_EVERY = 0.5
"""Seconds before the first search for the processes that a process has started, and between two: each reads the whole
process table."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a process may take: seconds, and MiB of resident memory on top of a baseline; None = as much as it wants.

    `wall` is time on the clock, `idle` time in which it hardly uses the processor. `cpu` is processor time: it counts
    once as much time has passed on the clock, so that threads side by side do not shorten it.
    """

    wall: float
    idle: float
    cpu: float | None = None
    memory_mb: float | None = None


def build_limits(seconds: float | None = None, memory_mb: float | None = None) -> Limits:
    """The limits of a process that builds or captures a target; by default those of core/limits.py."""
    memory_mb = memory_mb or BUILD_SHARE * psutil.virtual_memory().available / 2**20
    if seconds is None:
        return Limits(wall=PATIENCE * BUILD, cpu=BUILD, idle=IDLE_BUILD, memory_mb=memory_mb)
    return Limits(wall=seconds, idle=seconds, memory_mb=memory_mb)


def limits_of_other_inputs(limits: Limits) -> Limits:
    """Those of a process that has built its target and run the example, for its runs on all other inputs."""
    return replace(limits, wall=OTHER_INPUTS * limits.wall, cpu=limits.cpu and OTHER_INPUTS * limits.cpu)


@dataclass(frozen=True, kw_only=True)
class KillReason:
    """Why a process was killed: the status of its attempt, and a word in place of its signal.

    `seconds` it had run, or `memory_mb` it had taken on top of its baseline, of the `limit_mb` that it may take.
    """

    status: OutcomeStatus
    signal: Literal["hang", "time-out", "out of memory", "SIGKILL"]
    seconds: float = 0.0
    memory_mb: float = 0.0
    limit_mb: float = 0.0


class Supervisor:
    """Watches one process that leads its own group. The owner must call `look` about every TICK seconds.

    A process beyond its limits gets SIGUSR1, on which an attempt writes its stack to its log, and at the next look
    SIGKILL with all that it has started. `kill_reason` is set from then on. `log` takes what it prints;
    `has_cut_log` is whether that was too much to be kept.
    """

    def __init__(self, pid: int, limits: Limits, *, baseline_mb: float = 0.0, log: str | Path | None = None) -> None:
        self.pid = pid
        self.limits = limits
        self.kill_reason: KillReason | None = None
        self.has_cut_log = False
        self._log = log
        self._baseline_mb = baseline_mb
        self._started = time.monotonic()
        self._next_look, self._next_family = 0.0, self._started + _FAMILY_EVERY
        self._family: list[psutil.Process] = []
        self._looks: deque[tuple[float, bool]] = deque()
        self._working_looks = 0
        self._cpu = self._first_cpu = 0.0
        with contextlib.suppress(psutil.Error):
            self._family = [psutil.Process(pid)]
            self._cpu = self._first_cpu = _cpu_seconds(self._family[0])

    def look(self) -> None:
        """Kill the process if it is beyond a limit. Calls that come sooner than half a TICK do nothing."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + TICK / 2
        self.cut_log()
        if self.kill_reason is not None:
            self._kill()
            return
        reason = self._memory_reason(self._observe(now)) or self._time_reason(now - self._started)
        if reason is not None:
            self.kill_reason = reason
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGUSR1)

    def cut_log(self) -> None:
        """Keep what it has printed within bounds; to be called once more when it has ended."""
        self.has_cut_log = cut_log(self._log) or self.has_cut_log

    def kill(self, reason: KillReason) -> None:
        """Kill the process at once, whatever its limits."""
        self.kill_reason = self.kill_reason or reason
        self._kill()

    def _kill(self) -> None:
        kill_group(self.pid)
        with contextlib.suppress(psutil.Error, IndexError):
            self._family[0].kill()  # it may have left its group

    def _observe(self, now: float) -> float:
        """Note whether the process works; returns its memory with that of what it has started, in MiB."""
        if now >= self._next_family:
            self._next_family = now + _FAMILY_EVERY
            self._find_family()
        cpu, resident, running = 0.0, 0.0, False
        for process in self._family:
            with contextlib.suppress(psutil.Error), process.oneshot():
                cpu += _cpu_seconds(process)
                resident += process.memory_info().rss / 2**20
                running = running or process.status() in _AT_WORK
        self._note_look(now, working=running or cpu > self._cpu)
        self._cpu = cpu
        return resident

    def _find_family(self) -> None:
        with contextlib.suppress(psutil.Error):
            root = self._family[0] if self._family else psutil.Process(self.pid)
            self._family = [root, *filter(self._counts, root.children(recursive=True))]

    def _counts(self, process: psutil.Process) -> bool:
        """Not what leads a group: a worker's attempts have limits of their own."""
        with contextlib.suppress(OSError):
            return os.getpgid(process.pid) != process.pid
        return False

    def _note_look(self, now: float, *, working: bool) -> None:
        self._looks.append((now, working))
        self._working_looks += working
        while self._looks[0][0] < now - self.limits.idle:
            self._working_looks -= self._looks.popleft()[1]

    def _memory_reason(self, resident_mb: float) -> KillReason | None:
        limit, grown = self.limits.memory_mb, resident_mb - self._baseline_mb
        if limit is None or grown <= limit:
            return None
        return KillReason(status=OutcomeStatus.OUT_OF_MEMORY, signal="out of memory", memory_mb=grown, limit_mb=limit)

    def _time_reason(self, elapsed: float) -> KillReason | None:
        limits, worked = self.limits, self._cpu - self._first_cpu
        if elapsed >= limits.idle and self._working_looks < _WORKING_SHARE * len(self._looks):
            return KillReason(status=OutcomeStatus.TIMED_OUT, signal="hang", seconds=elapsed)
        if elapsed > limits.wall or (limits.cpu is not None and min(elapsed, worked) > limits.cpu):
            return KillReason(status=OutcomeStatus.TIMED_OUT, signal="time-out", seconds=elapsed)
        return None


@contextlib.contextmanager
def keep_within(pid: int, limits: Limits, *, log: Path | None = None) -> Iterator[Supervisor]:
    """Within it, a thread looks at the process, which leads its own group, and kills it at its limits."""
    supervisor, ended = Supervisor(pid, limits, baseline_mb=resident_mb(pid), log=log), threading.Event()

    def look() -> None:
        while not ended.wait(TICK):
            supervisor.look()

    thread = threading.Thread(target=look, name="limits", daemon=True)
    thread.start()
    try:
        yield supervisor
    finally:
        ended.set()
        thread.join()
        supervisor.cut_log()


def supervise(process: subprocess.Popen[bytes], limits: Limits, *, log: str | None = None) -> KillReason | None:
    """Wait for the end of a process that leads its own group; why it was killed, None where it ended by itself."""
    supervisor = Supervisor(process.pid, limits, log=log)
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=TICK)
            supervisor.look()
    finally:
        kill_group(process.pid)
        process.wait()
        supervisor.cut_log()
    return supervisor.kill_reason


def run_within(
    argv: Sequence[str],
    limits: Limits,
    *,
    folder: Path,
    errors: IO[bytes],
    environment: Mapping[str, str] | None = None,
) -> tuple[int, KillReason | None]:
    """Run a program in a folder, in one thread and with nothing to read; its exit status, and why it was killed.

    Of what it prints, stderr goes to the file `errors`, within bounds. `environment` is beside our own variables.
    """
    mark = new_mark()
    process = subprocess.Popen(
        argv,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env=with_mark({**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}, mark),
        process_group=0,
        preexec_fn=die_with_parent,
    )
    killed = supervise(process, limits, log=errors.name)
    kill_marked(mark)
    return process.returncode, killed


def resident_mb(pid: int) -> float:
    """Resident memory of one process in MiB; 0 where it cannot be read."""
    with contextlib.suppress(psutil.Error):
        return float(psutil.Process(pid).memory_info().rss) / 2**20
    return 0.0


def family_mb(pid: int) -> float:
    """Memory of a process and all that it has started, in MiB; a page that several share counts once."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += _proportional_kib(process) / 1024
    return total


def _proportional_kib(process: psutil.Process) -> float:
    try:
        with open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii") as file:
            return next(float(line.split()[1]) for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return float(process.memory_info().rss) / 1024


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)

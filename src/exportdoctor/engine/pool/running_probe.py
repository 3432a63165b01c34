"""A probe from its submission to its outcome: its limits, the supervisor of its attempt, and how the attempt ended."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from exportdoctor.core.limits import PATIENCE
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.engine.pool.crash import describe_crash
from exportdoctor.process.supervise import KillReason, Limits, Supervisor, resident_mb
from exportdoctor.report import wording

_ABANDONED = KillReason(status=OutcomeStatus.CRASHED, signal="SIGKILL")


@dataclass
class RunningProbe:
    """A probe that waits for a worker or is attempted by one, which `supervisor` then watches.

    One measured `by_cpu_time` may take longer on a busy machine. An `early` one is attempted before it is needed: it is
    not reported until it is adopted, and may be abandoned. A `spare` one is early only because a processor would idle:
    it is abandoned where another probe needs its place. A part's `root` goes before all others. `losses` counts the
    workers that ended under it.
    """

    probe: Probe
    future: Future[Outcome]
    by_cpu_time: bool
    early: bool = False
    root: bool = False
    urgent: bool = False
    spare: bool = False
    is_abandoned: bool = False
    losses: int = 0
    started: float = 0.0
    supervisor: Supervisor | None = None

    @property
    def pid(self) -> int | None:
        """The process that attempts it, None before it has started."""
        return self.supervisor.pid if self.supervisor else None

    @property
    def kill_reason(self) -> KillReason | None:
        """Why it was killed, if it was."""
        return self.supervisor.kill_reason if self.supervisor else None

    def on_dispatched(self) -> None:
        """A worker has it now; what another worker's attempt showed is void."""
        self.started, self.supervisor = time.monotonic(), None

    def on_started(self, pid: int, *, worker: int, log: str | None) -> None:
        """It runs now, in process `pid`, a child of `worker` or that worker itself, and prints to `log`."""
        self.started = time.monotonic()
        self.supervisor = Supervisor(pid, self._limits(), baseline_mb=resident_mb(worker), log=log)
        if self.is_abandoned:
            self.abandon()

    def adopt(self, probe: Probe) -> None:
        """Count from now on as `probe`, the same question with the limits that are known by now."""
        self.probe, self.early, self.spare = probe, False, False
        if self.supervisor is not None:
            self.supervisor.limits = self._limits()

    def abandon(self) -> None:
        """Kill its attempt, now or as soon as it starts."""
        self.is_abandoned = True
        if self.supervisor is not None:
            self.supervisor.kill(_ABANDONED)

    def on_finished(self, outcome: Outcome) -> Outcome:
        """The outcome with what is known here: why it was killed, and where a crash happened."""
        reason = self.kill_reason
        if reason is not None:
            killed = msgspec.structs.replace(outcome, signal=reason.signal)
            message = wording.kill_message(
                reason.signal, seconds=reason.seconds, memory_mb=reason.memory_mb, limit_mb=reason.limit_mb
            )
            return describe_crash(killed, status=reason.status, message=message)
        if outcome.status == OutcomeStatus.CRASHED:
            message = wording.crash_message(outcome.signal or "")
            return describe_crash(outcome, status=OutcomeStatus.CRASHED, message=message)
        return outcome

    def _limits(self) -> Limits:
        timeout, memory_mb = self.probe.timeout, self.probe.memory_mb
        if self.by_cpu_time:
            return Limits(wall=PATIENCE * timeout, cpu=timeout, idle=timeout, memory_mb=memory_mb)
        return Limits(wall=timeout, idle=timeout, memory_mb=memory_mb)

"""One scan worker as the pool sees it: its commands, its replies, and the attempts that it has in hand."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from exportdoctor.core.errors import ExportdoctorError, TargetError, WorkerLost
from exportdoctor.core.protocol.scan import AttemptProbe, Capture, Command, Finished, Opened, Ready, ScanReply, Started
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.engine.pool.crash import read_stack
from exportdoctor.engine.pool.running_probe import RunningProbe
from exportdoctor.process.client import LineClient
from exportdoctor.process.group import kill_group, name_exit
from exportdoctor.process.interpreter import explain_loss
from exportdoctor.process.supervise import Limits, Supervisor, resident_mb
from exportdoctor.report import wording
from exportdoctor.targets.eager import stack_line


@dataclass
class WorkerClient:
    """A worker process and the attempts that it has in hand, by probe id.

    `opened`: it has the target. `ready`: it has had all commands that the first one had, and may attempt.
    `imported`: torch is there. `has_cut_log`: it printed too much to be kept.
    `supervisor` watches it while the target's code runs in it: while it does a command.
    """

    client: LineClient
    running: dict[str, RunningProbe] = field(default_factory=dict)
    opened: bool = False
    ready: bool = False
    imported: bool = False
    supervisor: Supervisor | None = None
    has_cut_log: bool = False
    _replies: queue.SimpleQueue[ScanReply | None] = field(default_factory=queue.SimpleQueue)

    def ask(self, command: Command, *, log: Path | None, limits: Limits) -> ScanReply:
        """Its reply. Raises TargetError where the target's code ends it or exceeds the limits; what it printed is in
        `log`. Raises WorkerLost where it ends before, or is killed from outside.
        """
        start = _size(log)
        self.client.send(command)
        supervisor: Supervisor | None = None
        try:
            while True:
                if self.imported and supervisor is None:
                    pid = self.client.pid
                    supervisor = self.supervisor = Supervisor(pid, limits, baseline_mb=resident_mb(pid), log=log)
                reply = self._replies.get()
                if not isinstance(reply, Ready):
                    break
                self.imported = True
        finally:
            self.supervisor = None
            if supervisor is not None:
                supervisor.cut_log()
                self.has_cut_log |= supervisor.has_cut_log
        if reply is None:
            self.opened = self.ready = False
            self._replies.put(None)  # for whoever asks it again
            raise self._describe_loss(command, supervisor, log, start)
        self.opened = self.opened or isinstance(reply, Opened)
        return reply

    def _describe_loss(
        self, command: Command, supervisor: Supervisor | None, log: Path | None, start: int
    ) -> ExportdoctorError:
        part = command.part if isinstance(command, Capture) else ""
        hint = f"What it printed is in {log}" if log else ""
        reason = supervisor.kill_reason if supervisor else None
        end = name_exit(self.client.wait())
        if reason is not None:
            message = wording.build_killed(
                part, reason.signal, seconds=reason.seconds, memory_mb=reason.memory_mb, limit_mb=reason.limit_mb
            )
        elif supervisor is None:
            return explain_loss(WorkerLost(f"A worker process cannot start ({end})", hint=hint))
        elif end == "SIGKILL":
            return WorkerLost(wording.build_ended(part, end), hint=hint)
        else:
            message = wording.build_ended(part, end)
        frames = read_stack(str(log) if log else None, start=start)
        lines = (stack_line(frame.file, frame.line, frame.function, frame.source) for frame in frames)
        return TargetError(message, hint=hint, stack=tuple(filter(None, lines)))

    def attempt(self, running: RunningProbe) -> None:
        """Put an attempt into its hands."""
        running.on_dispatched()
        self.running[running.probe.id] = running
        self.client.send(AttemptProbe(probe=running.probe))

    def listen(self, *, on_started: Callable[[str, int], None], on_finished: Callable[[Outcome, bool], None]) -> None:
        """Hand its replies on until they end. `on_finished` also gets whether the attempt has spoiled the worker."""
        for reply in self.client.listen(ScanReply):
            match reply:
                case Started(probe=probe, pid=pid):
                    on_started(probe, pid)
                case Finished(outcome=outcome, spoiled=spoiled):
                    on_finished(outcome, spoiled)
                case _:
                    self._replies.put(reply)
        self._replies.put(None)

    def kill(self) -> None:
        """End it and what it attempts."""
        for running in self.running.values():
            if running.pid is not None and running.pid != self.client.pid:
                kill_group(running.pid)
        self.client.close()


def _size(log: Path | None) -> int:
    try:
        return os.stat(log).st_size if log else 0
    except OSError:
        return 0

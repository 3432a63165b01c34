"""One scan worker as the pool sees it: its commands, its replies, and the attempts that it has in hand."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from exportdoctor.core.errors import WorkerLost
from exportdoctor.core.protocol.scan import AttemptProbe, Command, Finished, Opened, ScanReply, Started
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.engine.pool.running_probe import RunningProbe
from exportdoctor.process.client import LineClient
from exportdoctor.process.group import kill_group, name_exit


@dataclass
class WorkerClient:
    """A worker process and the attempts that it has in hand, by probe id.

    `opened`: it has the target. `ready`: it has had all commands that the first one had, and may attempt.
    """

    client: LineClient
    running: dict[str, RunningProbe] = field(default_factory=dict)
    opened: bool = False
    ready: bool = False
    _replies: queue.SimpleQueue[ScanReply | None] = field(default_factory=queue.SimpleQueue)

    def ask(self, command: Command, *, log: Path | None) -> ScanReply:
        """Its reply. Raises WorkerLost where it ends instead; what it printed is then in `log`."""
        self.client.send(command)
        reply = self._replies.get()
        if reply is None:
            what = type(command).__name__.lower()
            raise WorkerLost(
                f"The worker ended during the command {what!r} ({name_exit(self.client.wait())})",
                hint=f"What it printed is in {log}" if log else "",
            )
        self.opened = self.opened or isinstance(reply, Opened)
        return reply

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

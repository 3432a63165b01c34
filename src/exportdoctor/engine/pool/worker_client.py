"""One worker process as the engine sees it: what it was told, what it has in hand, and what it replies."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import StoreError, WorkerLost
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.protocol.scan import AttemptProbe, Command, Finished, Opened, ScanReply, Started
from exportdoctor.engine.pool.crash import death
from exportdoctor.engine.pool.launch import Channel
from exportdoctor.engine.pool.running_probe import Flight


@dataclass
class Worker:
    """A worker process and the attempts that it has in hand, by probe id.

    `opened`: it has the target. `ready`: it has been told all that the first one was, and may attempt.
    """

    channel: Channel
    flights: dict[str, Flight] = field(default_factory=dict)
    opened: bool = False
    ready: bool = False
    _replies: queue.SimpleQueue[ScanReply | None] = field(default_factory=queue.SimpleQueue)

    def say(self, command: Command) -> None:
        """Tell it something; its replies come to `listen`."""
        with contextlib.suppress(OSError, ValueError):  # a dead worker is noticed by its reader
            self.channel.commands.write(encode(command) + b"\n")
            self.channel.commands.flush()

    def ask(self, command: Command, *, log: Path | None) -> ScanReply:
        """Its reply. Raises WorkerLost where it ends instead; what it printed is then in `log`."""
        self.say(command)
        reply = self._replies.get()
        if reply is None:
            what = type(command).__name__.lower()
            raise WorkerLost(
                f"The worker ended while it was told to {what} the target ({death(self.channel.reap())})",
                hint=f"What it printed is in {log}" if log else "",
            )
        self.opened = self.opened or isinstance(reply, Opened)
        return reply

    def attempt(self, flight: Flight) -> None:
        """Put an attempt into its hands."""
        self.flights[flight.probe.id] = flight
        self.say(AttemptProbe(probe=flight.probe))

    def listen(self, *, started: Callable[[str, int], None], finished: Callable[[Outcome, bool], None]) -> None:
        """Hear its replies until they end. `finished` is told whether the attempt has spoiled the worker."""
        for line in self.channel.replies:
            try:
                reply: ScanReply = decode(line, ScanReply)
            except StoreError:
                continue  # a torn last line of a killed worker
            match reply:
                case Started(probe=probe, pid=pid):
                    started(probe, pid)
                case Finished(outcome=outcome, spoiled=spoiled):
                    finished(outcome, spoiled)
                case _:
                    self._replies.put(reply)
        self._replies.put(None)

    def dismiss(self) -> None:
        """It ends once it has done what it is at."""
        with contextlib.suppress(OSError):
            self.channel.commands.close()

    def kill(self) -> None:
        """End it and what it attempts."""
        for flight in self.flights.values():
            if flight.pid is not None and flight.pid != self.channel.pid:
                with contextlib.suppress(OSError):
                    os.killpg(flight.pid, signal.SIGKILL)
        self.channel.kill()

"""The two ways to a scan worker: spawned from the interpreter, or forked from a process that holds the module."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from exportdoctor.process.client import LineClient, spawn
from exportdoctor.process.descendants import mark_this_process, new_mark
from exportdoctor.process.group import start_from_lasting_thread

WORKER_LOG = "worker.log"
"""The file, in a run's folder of logs, with what its workers print."""


class Launcher(Protocol):
    """Starts scan workers."""

    def start(self, *, log: Path | None) -> LineClient:
        """A new worker that waits for commands; what it prints goes to `log`."""


_FORKS: list[bool] = []


def fork_workers() -> None:
    """From now on workers are forks of this process, which has imported what they need and nothing of a target."""
    _FORKS.append(True)


@dataclass(frozen=True)
class Spawn:
    """Workers in fresh interpreters, or forks of one that is as good as fresh; they build the target themselves."""

    def start(self, *, log: Path | None) -> LineClient:
        """A fresh process."""
        return Fork(None).start(log=log) if _FORKS else spawn("worker", log=log)


@dataclass
class SpawnAhead:
    """As Spawn, with the first worker started already: it imports torch while this process still imports the engine."""

    first: LineClient | None

    def start(self, *, log: Path | None) -> LineClient:
        """The first worker, then fresh ones."""
        client, self.first = self.first, None
        return client or Spawn().start(log=log)

    def close(self) -> None:
        """Kill the first worker if nobody took it."""
        if self.first is not None:
            self.first.close()


@dataclass(frozen=True)
class Fork:
    """Workers forked from this process, for a target that only it has in memory: `plan` builds to that very module.

    Without a plan they build the target that they are asked for.
    """

    plan: Any

    def start(self, *, log: Path | None) -> LineClient:
        """A copy of this process that serves commands and never returns."""
        return start_from_lasting_thread(partial(self._fork, log))

    def _fork(self, log: Path | None) -> LineClient:
        command_reader, command_writer = os.pipe()
        reply_reader, reply_writer = os.pipe()
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None where it was closed before Python began
            stream.flush()
        mark = new_mark()
        pid = os.fork()
        if pid == 0:
            gc.freeze()  # a collection here would run the finalisers of objects whose threads are the parent's alone
            os.close(command_writer)
            os.close(reply_reader)
            mark_this_process(mark)
            # by name: the worker imports torch and is imported in its own process only
            server = importlib.import_module("exportdoctor.worker.scan_server")
            server.serve_plan(self.plan, commands=command_reader, replies=reply_writer, log=str(log) if log else None)
            os._exit(0)
        os.close(command_reader)
        os.close(reply_writer)
        return LineClient(pid, os.fdopen(command_writer, "wb"), os.fdopen(reply_reader, "rb"), mark=mark)

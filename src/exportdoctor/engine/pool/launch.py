"""How a worker process comes to life: spawned with an interpreter, or forked from a process that holds the module."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

# exportdoctor's parent folder: another environment's interpreter finds this very copy there
_ROOT = str(Path(__file__).resolve().parents[3])


@dataclass
class Channel:
    """A live worker: its process id and the two ends to speak with it."""

    pid: int
    commands: IO[bytes]
    replies: IO[bytes]
    process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """Kill the worker and everything in its process group."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        self.reap()

    def reap(self) -> int | None:
        """Wait for the end of the process; its exit status as `subprocess` gives it, None where it is not ours."""
        with contextlib.suppress(OSError, ValueError):
            self.commands.close()
        if self.process is not None:
            return self.process.wait()
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            return os.waitstatus_to_exitcode(status)
        return None


@dataclass(frozen=True)
class Fork:
    """Workers forked from this process, for a target that only it has in memory: `plan` builds to that very module."""

    plan: Any

    def start(self, *, log: Path | None) -> Channel:
        """A copy of this process that serves commands and never returns."""
        command_reader, command_writer = os.pipe()
        reply_reader, reply_writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            gc.freeze()  # a collection here would run the finalisers of objects whose threads are the parent's alone
            os.close(command_writer)
            os.close(reply_reader)
            # by name, because nobody but its own process may import the worker
            serving = importlib.import_module("exportdoctor.worker.scan_server")
            serving.serve_given(self.plan, commands=command_reader, replies=reply_writer, log=str(log) if log else None)
            os._exit(0)
        os.close(command_reader)
        os.close(reply_writer)
        return Channel(pid, os.fdopen(command_writer, "wb"), os.fdopen(reply_reader, "rb"))


class Launcher(Protocol):
    """Starts workers."""

    def start(self, *, log: Path | None) -> Channel:
        """A new worker that waits for commands; what it prints goes to `log`."""


@dataclass(frozen=True)
class Spawn:
    """Workers of an interpreter, by default this one; another environment's probes another torch."""

    python: str = sys.executable

    def start(self, *, log: Path | None) -> Channel:
        """A fresh process, leader of its own group."""
        environment = dict(os.environ)
        if not os.path.samefile(self.python, sys.executable) or _ROOT in sys.path:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, environment.get("PYTHONPATH"))))
        # transformers' advice and progress bars are no part of a diagnosis
        environment.setdefault("TRANSFORMERS_VERBOSITY", "error")
        environment.setdefault("TOKENIZERS_PARALLELISM", "false")
        with contextlib.ExitStack() as stack:
            talk: Any = subprocess.DEVNULL
            if log is not None:
                with contextlib.suppress(OSError):
                    talk = stack.enter_context(open(log, "ab"))
            process = subprocess.Popen(
                [self.python, "-P", "-m", "exportdoctor.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=talk,
                env=environment,
                process_group=0,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        return Channel(process.pid, process.stdin, process.stdout, process)

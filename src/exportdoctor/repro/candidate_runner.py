"""Asks a bench process (worker/repro/candidate_server.py) to run candidate scripts, one or several at a time."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import WorkerLost
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.protocol.repro import Candidate

CANDIDATE_FILE = os.path.join(os.sep, "repro", "repro.py")  # what worker/repro/candidate_server.py calls a candidate
_ROOT = str(Path(__file__).resolve().parents[2])


def started(module: str, *, talk: Path | None = None) -> subprocess.Popen[bytes]:
    """A process of exportdoctor.worker that speaks in lines, leader of its own group; its talk goes to a file."""
    environment = dict(os.environ)
    if _ROOT in sys.path:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, environment.get("PYTHONPATH"))))
    environment.setdefault("TRANSFORMERS_VERBOSITY", "error")
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    # the processes share the machine with us: one thread each is what a fork can keep anyway
    environment.setdefault("OMP_NUM_THREADS", "1")
    with contextlib.ExitStack() as stack:
        stderr: IO[bytes] | int = subprocess.DEVNULL
        if talk is not None:
            stderr = stack.enter_context(open(talk, "ab"))
        return subprocess.Popen(
            [sys.executable, "-P", "-m", f"exportdoctor.worker.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            process_group=0,
        )


class Bench:
    """A warm process that runs up to `width` candidates beside each other; a context manager that ends it.

    `timeout` is in seconds, `memory_mb` in MiB, for each candidate.
    """

    def __init__(
        self, *, width: int = 1, timeout: float = 20.0, memory_mb: float = 1000.0, talk: Path | None = None
    ) -> None:
        self.width = width
        self.timeout = timeout
        self.memory_mb = memory_mb
        self.asked = 0
        self._talk = talk
        self._process = started("repro.candidate_server", talk=talk)
        self._lock = threading.Lock()
        self._awaited: dict[str, queue.SimpleQueue[Outcome | None]] = {}
        self._lost = False
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self, source: str, *, eager: bool = False) -> Outcome:
        """The outcome of a script, which with `eager` must also run without export. Any thread may ask.

        Raises WorkerLost where the process itself has ended.
        """
        reply: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        with self._lock:
            self.asked += 1
            candidate = Candidate(
                id=str(self.asked), source=source, timeout=self.timeout, memory_mb=self.memory_mb, eager=eager
            )
            self._awaited[candidate.id] = reply
            self._send(candidate)
        outcome = reply.get()
        if outcome is None:
            raise WorkerLost("The process that runs candidate scripts has ended", hint=f"Its output: {self._talk}")
        return outcome

    def worked(self) -> float:
        """Seconds of the processor that it and the candidates that have ended took; 0 where that cannot be told."""
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system + times.children_user + times.children_system)

    def _send(self, candidate: Candidate) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            if not self._lost:
                stdin.write(encode(candidate) + b"\n")
                stdin.flush()
                return
        except (OSError, ValueError):
            pass  # its end is told below
        self._awaited.pop(candidate.id).put(None)

    def _listen(self) -> None:
        """Hand each reply to whoever waits for it; at the end of the process tell those who still do."""
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stdout:
                outcome: Outcome = decode(line, Outcome)
                self._awaited.pop(outcome.probe).put(outcome)
        with self._lock:
            self._lost = True
            while self._awaited:
                self._awaited.popitem()[1].put(None)

    def close(self) -> None:
        """End the process and what it runs; a thread that waits for an outcome gets WorkerLost."""
        end(self._process)

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of ours and its group, and reap it."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, 9)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()

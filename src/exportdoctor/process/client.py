"""One worker process as its client sees it: spawned, spoken with in lines of JSON, and killed with its group."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

import psutil

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.file_hash import WORKER_DEFAULTS
from exportdoctor.process.descendants import kill_below, kill_marked, new_mark, with_mark
from exportdoctor.process.group import kill_group, start_from_lasting_thread

_LOOK = 200
"""Milliseconds between two looks whether a silent process is still there."""
_PAUSE = 0.005
START_MODULE = str(Path(__file__).resolve().with_name("start_module.py"))


class Closing(ABC):
    """A context manager that closes itself at the end."""

    @abstractmethod
    def close(self) -> None:
        """End what this stands for; calling it again does no harm."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LineClient(Closing):
    """A worker process, and the two streams to speak with it: one JSON object a line.

    A request to a dead process is dropped: its replies end, too. `mark` is that of process/descendants.py.
    """

    def __init__(
        self,
        pid: int,
        requests: IO[bytes],
        replies: IO[bytes],
        process: subprocess.Popen[bytes] | None = None,
        *,
        mark: str = "",
    ) -> None:
        self.pid = pid
        self._mark = mark
        self._requests = requests
        self._replies = replies
        self._process = process
        self._exit: int | None = None
        self._has_exit = False
        self._reaping = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._torn = bytearray()

    def send(self, message: object) -> None:
        """Write one line; any thread may."""
        with contextlib.suppress(OSError, ValueError):
            self._requests.write(encode(message) + b"\n")
            self._requests.flush()

    def listen(self, kind: Any) -> Iterator[Any]:
        """Its replies, decoded as `kind`, until it ends. What is no such reply (a torn last line) is left out."""
        with contextlib.suppress(OSError, ValueError):
            while (line := self._next_line()) is not None:
                with contextlib.suppress(StoreError):
                    yield decode(line, kind)

    def _next_line(self) -> bytes | None:
        """None once it has ended and all was read: what it has started may hold the stream open for longer."""
        while not self._lines:
            ready = select.poll()
            ready.register(self._replies, select.POLLIN)
            ended = self._has_ended()
            if not ready.poll(0 if ended else _LOOK):
                if ended:
                    return None
                continue
            chunk = os.read(self._replies.fileno(), 1 << 20)
            if not chunk:
                return None
            whole, newline, rest = chunk.rpartition(b"\n")
            if newline:
                first, *others = whole.split(b"\n")
                self._lines.extend((bytes(self._torn) + first, *others))
                self._torn.clear()
            self._torn += rest
        return self._lines.popleft()

    def ask(self, message: object, kind: Any) -> Any:
        """Its reply to one request, None where it ends instead."""
        self.send(message)
        return next(self.listen(kind), None)

    def finish(self) -> None:
        """No more requests: the process ends once it has done what it was asked."""
        with contextlib.suppress(OSError, ValueError):
            self._requests.close()

    def wait(self) -> int | None:
        """Wait for its end; the exit status as `subprocess` gives it, None where it is not known."""
        self.finish()
        while not self._has_ended():
            time.sleep(_PAUSE)
        return self._exit

    def _has_ended(self) -> bool:
        """Whether it has ended; `_exit` is its status from then on."""
        with self._reaping:
            if not self._has_exit:
                self._has_exit, self._exit = self._reap()
                if self._has_exit:
                    kill_group(self.pid)  # at once: later its number may be that of another process
            return self._has_exit

    def _reap(self) -> tuple[bool, int | None]:
        if self._process is not None:
            status = self._process.poll()
            return status is not None, status
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return True, None
        return bool(pid), os.waitstatus_to_exitcode(status) if pid else None

    def cpu_seconds(self) -> float:
        """Processor time of the process and its ended children, in seconds; 0 where it cannot be read."""
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system + times.children_user + times.children_system)

    def close(self) -> None:
        """Kill the process and all that it has started. A thread that listens sees the end; calling it again does no
        harm.
        """
        with self._reaping, contextlib.suppress(OSError):
            if not self._has_exit:
                kill_below(self.pid)
                kill_group(self.pid)
                os.kill(self.pid, signal.SIGKILL)  # it may have left its group
        self.wait()
        if self._mark:
            kill_marked(self._mark)
        with contextlib.suppress(OSError):
            self._replies.close()


def spawn(module: str, *, log: Path | None, environment: Mapping[str, str] | None = None) -> LineClient:
    """Start `python -m exportdoctor.<module>` of this very exportdoctor, leader of its own group.

    What it prints goes to the file `log`; without one nowhere, or to our stderr with EXPORTDOCTOR_DEBUG.
    `environment` gives defaults for variables that are not set.
    """
    mark = new_mark()
    with contextlib.ExitStack() as stack:
        process = start_from_lasting_thread(
            lambda: subprocess.Popen(
                [sys.executable, "-P", START_MODULE, f"exportdoctor.{module}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=_open_log(log, stack),
                env=with_mark(_environment(environment or {}), mark),
                process_group=0,
            )
        )
    assert process.stdin is not None
    assert process.stdout is not None
    return LineClient(process.pid, process.stdin, process.stdout, process, mark=mark)


def run_module(module: str) -> subprocess.CompletedProcess[bytes]:
    """Run `python -m exportdoctor.<module>` of this very exportdoctor to its end, and keep what it prints."""
    return subprocess.run(
        [sys.executable, "-P", START_MODULE, f"exportdoctor.{module}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def _environment(defaults: Mapping[str, str]) -> dict[str, str]:
    return {**WORKER_DEFAULTS, **defaults, **os.environ}


def _open_log(log: Path | None, stack: contextlib.ExitStack) -> IO[bytes] | int | None:
    if log is not None:
        with contextlib.suppress(OSError):
            return stack.enter_context(open(log, "ab"))
    return None if log is None and os.environ.get("EXPORTDOCTOR_DEBUG") else subprocess.DEVNULL

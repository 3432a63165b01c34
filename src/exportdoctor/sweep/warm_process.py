"""A process that has torch and transformers in memory and forks for each scan: a sweep imports them once a node.

Run as a module it is that process. On stdin it gets one request a line: its number, the words of a command and the
file for what it prints; it answers with the number and the pid of the fork that runs it, and then the exit code. One
request is to hold a target: a fork builds it, answers in the same way once it has, and forks for those that follow.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from exportdoctor.process.descendants import mark_this_process
from exportdoctor.process.group import die_with_parent, lead_group, start_from_lasting_thread
from exportdoctor.process.launcher import fork_workers

_START_MODULE = str(Path(__file__).parents[1] / "process" / "start_module.py")
_IMPORTED = ("transformers", "transformers.modeling_utils", "transformers.models.auto.modeling_auto")
_WORKER, _TRANSLATOR = "exportdoctor.worker.open_target", "exportdoctor.worker.translate.onnx_program"
_HOLDER = "exportdoctor.worker.held_target"
"""By name: the process that sweeps imports no torch."""
_HOLD, _LET_GO = "hold", "let go"
_PATIENCE = 10.0
"""Seconds in which a request is taken up."""


class WarmScan:
    """A command that runs in a fork of the warm process, with the methods of `subprocess.Popen` that a sweep uses."""

    def __init__(self, pid: int, replies: IO[bytes], *, request: int) -> None:
        self.pid, self._replies, self._request = pid, replies, request
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, as `subprocess` gives it; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises TimeoutExpired; a warm process that has died took the command with it."""
        if self.returncode is None:
            if not select.select([self._replies], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("scan", timeout or 0.0)
            reply = _read(self._replies)  # of another request: the end of what this one was forked from
            self.returncode = reply[1] if reply and reply[0] == self._request else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to it, if it is there."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class WarmProcess:
    """The process, for one environment. It dies with its parent; one that has died is started again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}
        self._requests = 0

    def start(self, words: Sequence[str], errors: Path, environment: Mapping[str, str], *, mark: str = "") -> WarmScan:
        """Run `exportdoctor WORDS`, which prints to the file `errors` and has the mark, if any.

        Raises OSError where there is no process.
        """
        for _ in range(2):  # the request may be lost with what held a target
            if self._process is None or self._process.poll() is not None or self._environment != environment:
                self._open(environment)
            replies = self._ask(words, str(errors), mark)
            reply = _read(replies)
            while reply is not None and reply[0] != self._requests:  # what held a target had ended before
                reply = _read(replies) if select.select([replies], [], [], _PATIENCE)[0] else None
            if reply is not None:
                return WarmScan(reply[1], replies, request=self._requests)
            self.close()
        raise OSError("the warm process has ended")

    def _open(self, environment: Mapping[str, str]) -> None:
        self.close()
        self._environment = dict(environment)
        self._process = start_from_lasting_thread(
            lambda: subprocess.Popen(
                [sys.executable, "-P", _START_MODULE, "exportdoctor.sweep.warm_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                process_group=0,
                preexec_fn=die_with_parent,
                env=self._environment,
                bufsize=0,
            )
        )

    def _ask(self, words: Sequence[str], errors: str = "", mark: str = "") -> IO[bytes]:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests += 1
        line = json.dumps([self._requests, list(words), errors, mark])
        self._process.stdin.write(line.encode() + b"\n")
        return self._process.stdout

    def hold(self, ref: str, words: Sequence[str], environment: Mapping[str, str], *, mark: str) -> WarmScan:
        """Build a target for scans with these WORDS in a fork from which they are forked, until `let_go`.

        Its exit code is 0 once the target is there; else commands build it themselves. Raises OSError, as `start`.
        """
        return self.start((_HOLD, ref, *words), Path(os.devnull), environment, mark=mark)

    def let_go(self) -> None:
        """End the fork that holds a target, if there is one."""
        if self._process is not None:
            with suppress(OSError):
                _read(self._ask((_LET_GO,)))

    def close(self) -> None:
        """End it, and what it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _read(replies: IO[bytes]) -> tuple[int, int] | None:
    """The number of a request and what is said of it; None where the warm process has ended."""
    line = replies.readline()
    if not line.endswith(b"\n"):
        return None
    request, said = map(int, line.split())
    return request, said


def main() -> None:
    """Serve until stdin ends."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    for name in _IMPORTED:
        with suppress(ImportError):  # a target may do without
            importlib.import_module(name)
    with suppress(ImportError):  # the scan will say what is missing
        importlib.import_module("torch").set_num_threads(1)  # threads would not be there in a fork
        importlib.import_module(_WORKER).warm_up()
    _serve(requests, replies)


def _serve(requests: IO[bytes], replies: int, *, holding: bool = False) -> None:
    """Run each request in a fork, until stdin ends or a process that holds a target is to let go of it."""
    for line in requests:
        request, words, errors, mark = json.loads(line)
        if words == [_LET_GO]:
            if holding:
                return  # which is told by the process that waits for this one
            _reply(replies, request, 0)
            continue
        if {"onnx", "ort"} & set(words):
            with suppress(ImportError):
                importlib.import_module(_TRANSLATOR).warm_up_translation()
        pid = os.fork()
        if pid == 0:
            if words[0] == _HOLD:
                _hold(words[1], mark, requests, replies, request)
            os.close(replies)
            requests.close()
            _run(words, errors, mark)
        lead_group(pid)
        if words[0] != _HOLD:
            _reply(replies, request, pid)
        _, status = os.waitpid(pid, 0)
        _reply(replies, request, os.waitstatus_to_exitcode(status))


def _reply(replies: int, request: int, said: int) -> None:
    os.write(replies, b"%d %d\n" % (request, said))


def _hold(ref: str, mark: str, requests: IO[bytes], replies: int, request: int) -> None:
    """Build the target, say so, and serve in place of the process that waits for this one's end. Never returns."""
    code = 70
    try:
        lead_group()
        die_with_parent()
        mark_this_process(mark)
        _reply(replies, request, os.getpid())
        if importlib.import_module(_HOLDER).hold(ref):
            _reply(replies, request, 0)
            _serve(requests, replies, holding=True)
            code = 0
    finally:
        os._exit(code)


def _run(words: list[str], errors: str, mark: str) -> None:
    """Run the command as a process of its own would, and never return."""
    code = 70
    try:
        lead_group()
        die_with_parent()
        if mark:
            mark_this_process(mark)
        null, log = os.open(os.devnull, os.O_RDWR), os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for descriptor, stream in ((null, 0), (null, 1), (log, 2)):
            os.dup2(descriptor, stream)
        fork_workers()
        # by name: the command line is above this room
        code = int(importlib.import_module("exportdoctor.cli.main").run(words))
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()

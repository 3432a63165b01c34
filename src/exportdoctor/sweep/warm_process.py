"""A process that has torch and transformers in memory and forks for each scan: a sweep imports them once a node.

Run as a module it is that process. On stdin it gets one request a line: the words of a command and the file for what
it prints; it answers with the pid of the fork that runs it, and with the exit code once it has ended.
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
from exportdoctor.process.group import die_with_parent, lead_group
from exportdoctor.process.launcher import fork_workers

_START_MODULE = str(Path(__file__).parents[1] / "process" / "start_module.py")
_IMPORTED = ("transformers", "transformers.modeling_utils", "transformers.models.auto.modeling_auto")
_WORKER, _TRANSLATOR = "exportdoctor.worker.open_target", "exportdoctor.worker.translate.onnx_program"
"""By name: the process that sweeps imports no torch."""


class WarmScan:
    """A command that runs in a fork of the warm process, with the methods of `subprocess.Popen` that a sweep uses."""

    def __init__(self, pid: int, replies: IO[bytes]) -> None:
        self.pid, self._replies = pid, replies
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
            line = self._replies.readline()
            self.returncode = int(line) if line.endswith(b"\n") else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to it, if it is there."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class WarmProcess:
    """The process, for one environment. It dies with the thread that started it, and is then started again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}

    def start(self, words: Sequence[str], errors: Path, environment: Mapping[str, str], *, mark: str = "") -> WarmScan:
        """Run `exportdoctor WORDS`, which prints to the file `errors` and has the mark, if any.

        Raises OSError where there is no process.
        """
        if self._process is None or self._process.poll() is not None or self._environment != environment:
            self.close()
            self._environment = dict(environment)
            self._process = subprocess.Popen(
                [sys.executable, "-P", _START_MODULE, "exportdoctor.sweep.warm_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                process_group=0,
                preexec_fn=die_with_parent,
                env=self._environment,
                bufsize=0,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([list(words), str(errors), mark]).encode() + b"\n")
        pid = process.stdout.readline()
        if not pid.endswith(b"\n"):
            raise OSError("the warm process has ended")
        return WarmScan(int(pid), process.stdout)

    def close(self) -> None:
        """End it, and what it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def main() -> None:
    """Serve until stdin ends."""
    replies = os.dup(1)
    os.dup2(2, 1)
    for name in _IMPORTED:
        with suppress(ImportError):  # a target may do without
            importlib.import_module(name)
    with suppress(ImportError):  # the scan will say what is missing
        importlib.import_module("torch").set_num_threads(1)  # threads would not be there in a fork
        importlib.import_module(_WORKER).warm_up()
    for line in sys.stdin:
        words, errors, mark = json.loads(line)
        if {"onnx", "ort"} & set(words):
            with suppress(ImportError):
                importlib.import_module(_TRANSLATOR).warm_up_translation()
        pid = os.fork()
        if pid == 0:
            os.close(replies)
            _run(words, errors, mark)
        lead_group(pid)
        os.write(replies, b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        os.write(replies, b"%d\n" % os.waitstatus_to_exitcode(status))


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

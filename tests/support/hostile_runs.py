"""Runs hostile cases: each in a fork of this process, which has torch in memory, with workers that are forks, too."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from exportdoctor.cli.main import run
from exportdoctor.engine import shim_files
from exportdoctor.process import launcher
from exportdoctor.process.client import LineClient
from exportdoctor.process.descendants import mark_this_process, new_mark
from exportdoctor.process.supervise import Limits
from hostile import Hostile, cases

LONGEST = 60.0
"""Seconds after which a case counts as a hang."""
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST_LINE = 1200
_MOST_LINES = 15


@dataclass(frozen=True)
class Ended:
    """How a case ended. `code` None is a hang."""

    code: int | None
    out: str
    err: str
    seconds: float

    def fault(self, case: Hostile) -> str:
        """What is wrong with it; empty where nothing is."""
        return "; ".join(self._faults(case))

    def _faults(self, case: Hostile) -> Iterator[str]:
        if self.code is None:
            yield f"hangs for {self.seconds:.0f} s"
        elif self.code not in case.codes:
            yield f"exit code {self.code}"
        if found := _UNSAFE.search(self.out + self.err):
            yield f"prints {found[0]!r}"
        if "Traceback (most recent call last)" in self.err or "internal error" in self.err:
            yield "a traceback of ours"
        lines = self.err.splitlines()
        if self.code in (2, 3):
            if not lines or not lines[-1].startswith("exportdoctor: "):
                yield "no line at the end"
            if case.word and case.word not in self.err:
                yield f"does not say {case.word!r}"
        if any(len(line) > _LONGEST_LINE for line in lines) or len(lines) > _MOST_LINES:
            yield f"{len(lines)} lines, the longest of {max(map(len, lines), default=0)}"


def run_case(case: Hostile) -> Ended:
    """Run one in a folder of its own."""
    _import_what_workers_need()
    place = Path(tempfile.mkdtemp(prefix="hostile-"))
    folder = place / "folder"
    folder.mkdir()
    try:
        case.prepare(folder)
        started = time.monotonic()
        pid = _fork(lambda: _run_here(case, folder, place), place)
        code = _wait(pid, started + LONGEST)
        seconds = time.monotonic() - started
        out, err = (_read(place / name) for name in ("out", "err"))
        return Ended(code, out, err, seconds)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@functools.cache
def _import_what_workers_need() -> None:
    from transformers import LlamaForCausalLM  # noqa: F401

    import scanning  # noqa: F401


def _read(file: Path) -> str:
    return file.read_bytes().decode(errors="surrogateescape") if file.exists() else ""


def _run_here(case: Hostile, folder: Path, place: Path) -> int:
    os.chdir(folder)
    os.environ["EXPORTDOCTOR_HOME"] = str(place / "home")
    sys.argv = ["exportdoctor", *case.arguments]
    return run(case.arguments)


def _fork(work: Callable[[], int], place: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        out, err = (os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("out", "err"))
        for source, target in ((null, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        _take_streams()
        vars(launcher)["spawn"] = _warm_worker
        shim_files.LIMITS = Limits(wall=40, cpu=3, idle=6)
        code = work()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _take_streams() -> None:
    """Text streams on 0 to 2: a test runner has others."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115


def _warm_worker(module: str, *, log: Path | None, environment: Any = None) -> LineClient:
    """A worker as `process.client.spawn` starts it, but for its imports, which this process has done."""
    assert module == "worker"
    requests, replies, mark = os.pipe(), os.pipe(), new_mark()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setpgid(0, 0)
            mark_this_process(mark)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            where = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for source, target in ((requests[0], 0), (replies[1], 1), (where, 2)):
                os.dup2(source, target)
            os.closerange(3, 200)
            _take_streams()
            from exportdoctor.worker.read_log import LOG

            LOG.forget()
            from exportdoctor.worker.scan_server import main

            main()
        os._exit(1)
    os.close(requests[0])
    os.close(replies[1])
    return LineClient(pid, os.fdopen(requests[1], "wb"), os.fdopen(replies[0], "rb"), mark=mark)


def _wait(pid: int, deadline: float) -> int | None:
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    for one in (*psutil.Process(pid).children(recursive=True), psutil.Process(pid)):
        with contextlib.suppress(psutil.Error):
            one.send_signal(signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main() -> None:
    """`python hostile_runs.py [PART OF A NAME]`: run all cases and print those that fall short."""
    chosen = [case for case in cases() if len(sys.argv) < 2 or any(word in case.name for word in sys.argv[1:])]
    wrong = 0
    for case in chosen:
        ended = run_case(case)
        if fault := ended.fault(case):
            wrong += 1
            last = (ended.err.splitlines() or [""])[-1][:230]
            print(f"{case.name:55} {ended.seconds:5.1f} s  {fault}  | {last!r}", flush=True)
    print(f"{wrong} of {len(chosen)} fall short")


if __name__ == "__main__":
    main()

"""Runs candidate scripts: torch is imported once, and each candidate runs in a forked copy of this process.

Candidates come as lines on stdin, outcomes go as lines to what was stdout, in the order in which they end. Nothing is
judged here.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import linecache
import os
import select
import signal
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import psutil
import torch

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.outcome import Failure, Outcome, OutcomeStatus
from exportdoctor.core.protocol.repro import Candidate
from exportdoctor.worker.attempt.fast_export import FastExport
from exportdoctor.worker.describe.describe_failure import cause_chain, describe_failure
from exportdoctor.worker.describe.symbol_origins import SymbolOrigins, record_symbol_origins
from exportdoctor.worker.process_setup import die_with_parent, lead_a_group, send_output_to, write_stacks_to

FILE = os.path.join(os.sep, "repro", "repro.py")
_TICK = 0.05
_IDLE = 1.2  # seconds without using the processor after which a candidate counts as hanging


@dataclass
class Run:
    """A candidate in its child."""

    candidate: Candidate
    pid: int
    pipe: int
    started: float = field(default_factory=time.perf_counter)
    data: bytearray = field(default_factory=bytearray)
    worked: float = 0.0
    worked_at: float = field(default_factory=time.perf_counter)
    fate: OutcomeStatus | None = None

    def ended(self) -> bool:
        """Take what the child has written; whether that was its end."""
        chunk = os.read(self.pipe, 1 << 16)
        self.data.extend(chunk)
        return not chunk

    def check(self) -> None:
        """Kill the child where it takes too long, sleeps for good, or eats too much memory."""
        now = time.perf_counter()
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            times = process.cpu_times()
            worked = times.user + times.system
            if worked > self.worked + 0.01 or process.status() == psutil.STATUS_RUNNING:
                self.worked, self.worked_at = worked, now
            if process.memory_info().rss - _rss() > self.candidate.memory_mb * 2**20:
                self.kill(OutcomeStatus.OUT_OF_MEMORY)
        if now - self.started > self.candidate.timeout or now - self.worked_at > _IDLE:
            self.kill(OutcomeStatus.TIMED_OUT)

    def kill(self, fate: OutcomeStatus) -> None:
        """End the child and all that it has started."""
        self.fate = self.fate or fate
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def outcome(self) -> Outcome:
        """What the child said, or how it died. To be asked once, after its end."""
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        seconds = round(time.perf_counter() - self.started, 4)
        if not self.fate:
            with contextlib.suppress(StoreError):
                told: Outcome = decode(bytes(self.data), Outcome)
                return told
        sign = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else None
        if not self.data.startswith(b"\n"):  # it died before any export
            return Outcome(
                probe=self.candidate.id, status=OutcomeStatus.FAILED, failure=Failure(stage="capture", exceptions=())
            )
        return Outcome(
            probe=self.candidate.id,
            status=self.fate or OutcomeStatus.CRASHED,
            signal=None if self.fate else sign or f"exit code {os.waitstatus_to_exitcode(status)}",
            seconds=seconds,
        )


def started(candidate: Candidate) -> Run:
    """`candidate` running in a copy of this process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(candidate, writer)
    os.close(writer)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return Run(candidate, pid, reader)


def _child(candidate: Candidate, writer: int) -> None:
    """Never returns."""
    code = 70
    try:
        lead_a_group()
        die_with_parent()
        write_stacks_to(send_output_to(None))
        data = memoryview(encode(_executed(candidate, writer)))
        while data:
            data = data[os.write(writer, data) :]
        code = 0
    finally:
        os._exit(code)


def _executed(candidate: Candidate, writer: int) -> Outcome:
    """Execute the script as `__main__`; what it raises is the answer."""
    started = time.perf_counter()
    linecache.cache[FILE] = (len(candidate.source), None, candidate.source.splitlines(keepends=True), FILE)
    births, entrance, economy = SymbolOrigins(), _Entrance(candidate.eager, writer), FastExport()
    try:
        with record_symbol_origins() as births:
            with economy.while_tracing():
                _run(candidate.source)
            if economy.checks_skipped:  # it passed, and might not have
                _run(candidate.source)
    except (Exception, SystemExit, GeneratorExit) as error:
        stage = "export" if entrance.entered else "capture"
        failure = describe_failure(error, stage=stage, names={})  # type: ignore[arg-type]
        failure = msgspec.structs.replace(failure, origins=births.of(tuple(cause_chain(error))))
        status = OutcomeStatus.OUT_OF_MEMORY if isinstance(error, MemoryError) else OutcomeStatus.FAILED
        return _outcome(candidate, status, started, failure)
    if not entrance.entered:  # what exports nothing does not export well
        return _outcome(candidate, OutcomeStatus.FAILED, started, Failure(stage="capture", exceptions=()))
    return _outcome(candidate, OutcomeStatus.PASSED, started, None)


def _run(source: str) -> None:
    module = types.ModuleType("__main__")
    module.__file__ = FILE
    sys.modules["__main__"] = module
    exec(compile(source, FILE, "exec", dont_inherit=True), module.__dict__)


class _Entrance:
    """Stands before torch's ways to export: notes that one was entered, with `eager` after a plain run of copies.

    What fails before that is no failure of an export. The note goes down the pipe, where it outlives a crash.
    """

    def __init__(self, eager: bool, writer: int) -> None:
        self.eager = eager
        self.writer = writer
        self.entered = False
        torch.export.export = self._watched(torch.export.export, keywords=1)
        torch.onnx.export = self._watched(torch.onnx.export, keywords=None)

    def _watched(self, export: Any, *, keywords: int | None) -> Any:
        """`export` behind this entrance; `keywords` is the place of the module's keyword arguments in `rest`."""

        @functools.wraps(export)
        def enter(module: Any, *rest: Any, **how: Any) -> Any:
            if self.eager:
                args = rest[0] if rest else how.get("args", ())
                given = rest[keywords] if keywords and len(rest) > keywords else how.get("kwargs")
                copied, values, named = copy.deepcopy((module, args, given or {}))
                copied(*(values if isinstance(values, tuple) else (values,)), **named)
            if not self.entered:
                self.entered = True
                os.write(self.writer, b"\n")
            return export(module, *rest, **how)

        return enter


def _outcome(candidate: Candidate, status: OutcomeStatus, started: float, failure: Failure | None) -> Outcome:
    seconds = round(time.perf_counter() - started, 4)
    return Outcome(probe=candidate.id, status=status, seconds=seconds, failure=failure)


def _rss() -> int:
    return int(psutil.Process().memory_info().rss)


def _warm_up() -> None:
    """One throwaway export by each way: torch imports its tracers on first use."""
    module, shapes = torch.nn.Linear(2, 2), ({0: torch.export.Dim.DYNAMIC},)
    for strict in (False, True):
        with contextlib.suppress(Exception):
            torch.export.export(module, (torch.zeros(3, 2),), dynamic_shapes=shapes, strict=strict)
    torch._dynamo.reset()


def outcomes(commands: int) -> Iterator[Outcome]:
    """The outcome of each candidate that the descriptor `commands` brings, as they end.

    All that have come run beside each other: how many that may be is for whoever sends them.
    """
    rest, runs, more = b"", dict[int, Run](), True
    while more or runs:
        waiting = [commands, *runs] if more else list(runs)
        ready, _, _ = select.select(waiting, [], [], _TICK if runs else None)
        if commands in ready:
            chunk = os.read(commands, 1 << 16)
            more = bool(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            fresh = [started(decode(line, Candidate)) for line in lines]
            runs |= {run.pipe: run for run in fresh}
        for pipe in ready:
            if pipe in runs and runs[pipe].ended():
                yield runs.pop(pipe).outcome()
        for run in runs.values():
            run.check()


def main() -> None:
    """Serve until stdin ends."""
    die_with_parent()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # libgomp's threads do not survive a fork
    commands = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _warm_up()
    for outcome in outcomes(commands):
        replies.write(encode(outcome) + b"\n")
        replies.flush()


if __name__ == "__main__":
    main()

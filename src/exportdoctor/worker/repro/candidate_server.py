"""Runs candidate scripts: torch is imported once, and each candidate runs in a forked copy of this process.

It speaks core/protocol/repro.py; outcomes go out in the order in which they end. Nothing is judged here.
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
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.failure.kinds import NUMBERS_DIFFER
from exportdoctor.core.failure.messages import says_other_numbers
from exportdoctor.core.limits import IDLE_CANDIDATE
from exportdoctor.core.protocol.repro import CANDIDATE_FILE, Candidate
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Outcome, OutcomeStatus, Stage
from exportdoctor.process.supervise import TICK, Limits, Supervisor, resident_mb
from exportdoctor.torch_internals.dynamo_frames import keep_interpreter_frames
from exportdoctor.torch_internals.shape_env import NEW_SYMBOLS
from exportdoctor.worker.attempt.fast_export import FastExport
from exportdoctor.worker.child import Child, fork
from exportdoctor.worker.describe.describe_failure import cause_chain, describe_failure, qualified_name
from exportdoctor.worker.describe.guard_origin import GuardLog, record_guards
from exportdoctor.worker.describe.python_frames import tracebacks
from exportdoctor.worker.describe.symbol_origins import SymbolOrigins, record_symbol_origins
from exportdoctor.worker.describe.value_origins import find_value_origin
from exportdoctor.worker.standard_streams import take_line_streams, write_line
from exportdoctor.worker.translate.onnx_program import warm_up_translation

_ENTERED = b"\n"
"""What a child writes to its pipe when it enters an export."""
_NO_EXPORT = Failure(stage="capture", exceptions=())


@dataclass(frozen=True)
class CandidateChild:
    """A candidate in its child, and who watches it."""

    candidate: Candidate
    child: Child
    supervisor: Supervisor

    def outcome(self) -> Outcome:
        """What the child wrote, or how it died. To be called once, after the end of its pipe."""
        end, reason = self.child.wait(), self.supervisor.kill_reason
        outcome = end.outcome(self.candidate.id, killed=reason.status if reason else None)
        if outcome.failure is None and not end.data.startswith(_ENTERED):  # it died before any export
            return Outcome(probe=outcome.probe, status=OutcomeStatus.FAILED, failure=_NO_EXPORT)
        return outcome


def start_candidate(candidate: Candidate) -> CandidateChild:
    """`candidate` in a copy of this process."""
    if "dynamo=True" in candidate.source:
        warm_up_translation()
    child = fork(lambda pipe: encode(_execute(candidate, pipe)))
    limits = Limits(wall=candidate.timeout, idle=IDLE_CANDIDATE, memory_mb=candidate.memory_mb)
    return CandidateChild(candidate, child, Supervisor(child.pid, limits, baseline_mb=resident_mb(os.getpid())))


def _execute(candidate: Candidate, writer: int) -> Outcome:
    """Execute the script as `__main__`; what it raises is the answer."""
    started = time.perf_counter()
    source = candidate.source
    linecache.cache[CANDIDATE_FILE] = (len(source), None, source.splitlines(keepends=True), CANDIDATE_FILE)
    gate, fast = _ExportGate(candidate.eager, writer), FastExport()
    origins, guards = SymbolOrigins(), GuardLog()
    try:
        with record_symbol_origins() as origins, record_guards() as guards, keep_interpreter_frames():
            with fast.while_tracing():
                _run(source)
            if fast.checks_skipped:  # it passed, and might not have
                _run(source)
    except (Exception, SystemExit, GeneratorExit, KeyboardInterrupt) as error:
        stage: Stage = "export" if gate.entered else "capture"
        chain = tuple(cause_chain(error))
        if gate.entered and (later := _later_stage(chain)):
            kind = NUMBERS_DIFFER if later == "numbers" else qualified_name(type(chain[-1]))
            innermost = ExceptionFact(type=kind, message=str(chain[-1]))
            failure = Failure(stage=later, exceptions=(innermost,))
            return _outcome(candidate, OutcomeStatus.FAILED, started, failure)
        failure = describe_failure(error, stage=stage, names={})
        made = find_value_origin(chain, lambda: _run(source))
        violated = guards.find_violated(chain)
        failure = msgspec.structs.replace(
            failure,
            origins=origins.of(chain),
            value_origin=made,
            guard=violated.frame if violated else None,
            guarded_by=violated.asker.operation if violated else "",
            unbacked=len(origins.by_symbol) if NEW_SYMBOLS.is_supported() else None,
        )
        status = OutcomeStatus.OUT_OF_MEMORY if isinstance(error, MemoryError) else OutcomeStatus.FAILED
        return _outcome(candidate, status, started, failure)
    if not gate.entered:  # what exports nothing does not export well
        return _outcome(candidate, OutcomeStatus.FAILED, started, _NO_EXPORT)
    return _outcome(candidate, OutcomeStatus.PASSED, started, None)


def _later_stage(chain: tuple[BaseException, ...]) -> Stage | None:
    """The stage after the export in which it was raised: by torch.onnx, below the script's own decomposition, by ONNX
    Runtime, or by the comparison of what that gives."""
    names = [qualified_name(type(error)) for error in chain]
    if names[0].startswith("torch.onnx."):
        return None if any(name.endswith("TorchExportError") for name in names) else "translate"
    frames = [link.tb_frame for link in tracebacks(chain[0])]
    called = [frame.f_code.co_name for frame in frames]
    if any(str(frame.f_globals.get("__name__")).startswith("onnxruntime") for frame in frames):
        return "load" if "initialize_inference_session" in called else "run"
    if "assert_close" in called:
        return "numbers" if says_other_numbers(str(chain[0])) else None
    return "decompose" if "run_decompositions" in called else None


def _run(source: str) -> None:
    module = types.ModuleType("__main__")
    module.__file__ = CANDIDATE_FILE
    sys.modules["__main__"] = module
    exec(compile(source, CANDIDATE_FILE, "exec", dont_inherit=True), module.__dict__)


class _ExportGate:
    """Wraps torch's ways to export: notes that one was entered, with `eager` after a plain run of copies.

    What fails before that is no failure of an export. The note is written to the pipe, where it survives a crash.
    """

    def __init__(self, eager: bool, writer: int) -> None:
        self.eager = eager
        self.writer = writer
        self.entered = False
        torch.export.export = self._guard(torch.export.export, keywords=1)
        torch.onnx.export = self._guard(torch.onnx.export, keywords=None)

    def _guard(self, export: Any, *, keywords: int | None) -> Any:
        """`export` behind this gate; `keywords` is the place of the module's keyword arguments in `rest`."""

        @functools.wraps(export)
        def enter(module: Any, *rest: Any, **how: Any) -> Any:
            if self.eager:
                args = rest[0] if rest else how.get("args", ())
                given = rest[keywords] if keywords and len(rest) > keywords else how.get("kwargs")
                copied, values, named = copy.deepcopy((module, args, given or {}))
                copied(*(values if isinstance(values, tuple) else (values,)), **named)
            if not self.entered:
                self.entered = True
                os.write(self.writer, _ENTERED)
            with keep_interpreter_frames():  # as in an attempt, so that what failed is seen as exactly
                return export(module, *rest, **how)

        return enter


def _outcome(candidate: Candidate, status: OutcomeStatus, started: float, failure: Failure | None) -> Outcome:
    seconds = round(time.perf_counter() - started, 4)
    return Outcome(probe=candidate.id, status=status, seconds=seconds, failure=failure)


def _warm_up() -> None:
    """One throwaway export by each way: torch imports its tracers on first use."""
    module, shapes = torch.nn.Linear(2, 2), ({0: torch.export.Dim.DYNAMIC},)
    for strict in (False, True):
        with contextlib.suppress(Exception):
            torch.export.export(module, (torch.zeros(3, 2),), dynamic_shapes=shapes, strict=strict)
    torch.compiler.reset()


def run_candidates(requests: int) -> Iterator[Outcome]:
    """The outcome of each candidate that the descriptor `requests` brings, as they end.

    All that have come run beside each other: how many those are is up to the client.
    """
    rest, running, more = b"", dict[int, CandidateChild](), True
    while more or running:
        waiting = [requests, *running] if more else list(running)
        ready, _, _ = select.select(waiting, [], [], TICK if running else None)
        if requests in ready:
            chunk = os.read(requests, 1 << 16)
            more = bool(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            fresh = [start_candidate(decode(line, Candidate)) for line in lines]
            running |= {one.child.pipe: one for one in fresh}
        for pipe in ready:
            if pipe in running and not running[pipe].child.read():
                yield running.pop(pipe).outcome()
        for one in running.values():
            one.supervisor.look()


def main() -> None:
    """Serve until the requests end."""
    requests, replies = take_line_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # libgomp's threads do not survive a fork
    _warm_up()
    for outcome in run_candidates(requests):
        write_line(replies, outcome)


if __name__ == "__main__":
    main()

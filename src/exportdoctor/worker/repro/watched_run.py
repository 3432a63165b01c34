"""One attempt, or one eager forward, in a forked child that is watched: how it ended, and what ran in it."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable
from typing import TypeVar

import msgspec
import torch

from exportdoctor.core.codec import encode
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.core.limits import IDLE_ATTEMPT
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.process.supervise import Limits
from exportdoctor.targets.held_state import attributes_of
from exportdoctor.worker.attempt.export_attempt import attempt
from exportdoctor.worker.capture.session import PartCapture
from exportdoctor.worker.child import fork
from exportdoctor.worker.repro.script.recorder import Record, Recorder, read_record

_T = TypeVar("_T")
_CACHED = type(functools.cache(len))


def run_watched(part: PartCapture, probe: Probe, *, exporting: bool) -> tuple[Outcome, Record]:
    """The outcome of the attempt (or of the eager forward), and what ran in it."""
    return run_in_child(probe, lambda out: _record(part, probe, out, exporting=exporting), read_record)


def run_in_child(probe: Probe, work: Callable[[int], Outcome], read: Callable[[str], _T]) -> tuple[Outcome, _T]:
    """How `work` ended in a forked child, and what `read` makes of the file to whose descriptor it wrote."""
    descriptor, path = tempfile.mkstemp(prefix="exportdoctor-")
    limits = Limits(wall=probe.timeout, idle=IDLE_ATTEMPT, memory_mb=probe.memory_mb)
    try:
        end, killed = fork(lambda _: encode(work(descriptor))).wait_within(limits)
        return end.outcome(probe.id, killed=killed), read(path)
    finally:
        os.close(descriptor)
        os.unlink(path)


def _record(part: PartCapture, probe: Probe, out: int, *, exporting: bool) -> Outcome:
    """Run in the child and write the record to the file `out` as it grows, so that it survives a crash."""
    recorder = Recorder(out, part.names)
    if not exporting:
        return _eager(part, probe, recorder)
    if EXPORTERS[probe.exporter].traces_with_dynamo:
        return attempt(part, probe)  # dynamo runs no user code that could be watched
    plain = msgspec.structs.replace(probe, to="export") if probe.to in ("decomposed", "onnx", "ort") else probe
    outcome: Outcome = recorder.run(lambda: attempt(part, plain))
    # a later stage runs none of the user's code, and takes minutes if it is watched
    return outcome if plain is probe or not outcome.passed else attempt(part, probe)


def _eager(part: PartCapture, probe: Probe, recorder: Recorder) -> Outcome:
    module, call = part.module_at(probe.fqn), part.calls_of(probe.fqn)[probe.call]
    _forget_cached_calls()
    with part.prepare(), torch.no_grad(), contextlib.suppress(Exception):
        recorder.run(lambda: module(*call.args, **call.kwargs))
    return Outcome(probe=probe.id, status=OutcomeStatus.PASSED)


def _forget_cached_calls() -> None:
    """Empty the caches of functions in the user's files: what a cache answers is not seen to run."""
    for module in list(sys.modules.values()):
        space = attributes_of(module)
        if is_user_file(str(space.get("__file__") or "<none>")):
            for value in list(space.values()):
                if issubclass(type(value), _CACHED):
                    value.cache_clear()

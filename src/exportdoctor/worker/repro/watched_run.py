"""One attempt, or one eager forward, in a forked child that is watched: how it ended, and what ran in it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import time

import psutil
import torch

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.outcome import Outcome, OutcomeStatus
from exportdoctor.core.probe import Probe
from exportdoctor.worker.attempt.export_attempt import attempt
from exportdoctor.worker.capture.session import PartCapture
from exportdoctor.worker.process_setup import die_with_parent, lead_a_group, send_output_to, write_stacks_to
from exportdoctor.worker.repro.recorder import Record, Recorder, read_record

_TICK = 0.1
_IDLE = 4.0  # seconds without using the processor after which it counts as hanging


def watched(part: PartCapture, probe: Probe, *, exporting: bool) -> tuple[Outcome, Record]:
    """The outcome of the attempt (or of the eager forward), and what ran in it."""
    descriptor, path = tempfile.mkstemp(prefix="exportdoctor-")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(part, probe, descriptor, writer, exporting=exporting)
    os.close(writer)
    try:
        outcome = _ended(pid, reader, probe)
        return outcome, read_record(path)
    finally:
        os.close(descriptor)
        os.unlink(path)


def _child(part: PartCapture, probe: Probe, out: int, writer: int, *, exporting: bool) -> None:
    """Never returns."""
    code = 70
    try:
        lead_a_group()
        die_with_parent()
        write_stacks_to(send_output_to(None))
        recorder = Recorder(out, part.names)
        if not exporting:
            outcome = _eager(part, probe, recorder)
        elif EXPORTERS[probe.exporter].traces_with_dynamo:
            outcome = attempt(part, probe)  # dynamo runs no user code that could be watched
        else:
            outcome = recorder.run(lambda: attempt(part, probe))
        data = memoryview(encode(outcome))
        while data:
            data = data[os.write(writer, data) :]
        code = 0
    finally:
        os._exit(code)


def _eager(part: PartCapture, probe: Probe, recorder: Recorder) -> Outcome:
    module, call = part.module_at(probe.fqn), part.calls_of(probe.fqn)[probe.call]
    with part.prepare(), torch.no_grad(), contextlib.suppress(Exception):
        recorder.run(lambda: module(*call.args, **call.kwargs))
    return Outcome(probe=probe.id, status=OutcomeStatus.PASSED)


def _ended(pid: int, pipe: int, probe: Probe) -> Outcome:
    """The child's word, or how it ended."""
    data, deadline = bytearray(), time.monotonic() + probe.timeout
    fate: OutcomeStatus | None = None
    process, base = psutil.Process(pid), psutil.Process().memory_info().rss
    worked, idle_since = 0.0, time.monotonic()
    while True:
        ready, _, _ = select.select([pipe], [], [], _TICK)
        if ready:
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                break
            data.extend(chunk)
            continue
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            if times.user + times.system > worked + 0.02 or process.status() == psutil.STATUS_RUNNING:
                worked, idle_since = times.user + times.system, time.monotonic()
            if probe.memory_mb and process.memory_info().rss - base > probe.memory_mb * 2**20:
                fate = OutcomeStatus.OUT_OF_MEMORY
        late = time.monotonic() > deadline or time.monotonic() - idle_since > _IDLE
        fate = fate or (OutcomeStatus.TIMED_OUT if late else None)
        if fate:
            os.kill(pid, signal.SIGKILL)
    os.close(pipe)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(StoreError):
        if not fate:
            told: Outcome = decode(bytes(data), Outcome)
            return told
    sign = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) and not fate else None
    return Outcome(probe=probe.id, status=fate or OutcomeStatus.CRASHED, signal=sign)

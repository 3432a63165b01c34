"""Asks a failing probe once more, watched, and writes drafts of a script that fails in the same way.

A process of its own, for one finding: it reads a Harvest from stdin and answers with one line. The attempt runs in a
forked child, because it may crash, hang or spoil the model.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil
import torch
from torch.utils import _pytree as pytree

from exportdoctor.core.candidate import AnyHarvestReply, Draft, Harvest, Harvested, NoMore, Unharvested
from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import ExportdoctorError, StoreError
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol import Capture, Open
from exportdoctor.worker import environment
from exportdoctor.worker.attempting.attempt import _shapes, attempt
from exportdoctor.worker.capturing.capture import Call
from exportdoctor.worker.capturing.flat_signature import _bundled
from exportdoctor.worker.capturing.session import PartCapture
from exportdoctor.worker.harvesting.record import Record, Recorder, read_record
from exportdoctor.worker.harvesting.script import Script, mentioned_names
from exportdoctor.worker.harvesting.values import shapes_code
from exportdoctor.worker.opening import Opening, Refusal
from exportdoctor.worker.process import die_with_parent, lead_a_group, send_output_to, write_stacks_to

_TICK = 0.1
_TIMES = 2  # attempts, because a failure may come and go
_IDLE = 4.0  # seconds without using the processor after which it counts as hanging


def harvest(command: Harvest) -> Iterator[AnyHarvestReply]:
    """The failure seen again, and then drafts of a script, each written when it is asked for."""
    opening, probe = Opening(), command.probe
    opening.open(Open(target=command.target, isolation="fork", shim_files=command.shim_files))
    opening.capture(Capture(part=probe.part, exporter=probe.exporter))
    part = opening.parts[probe.part]
    if probe.fqn not in part.distinct or probe.call >= len(part.distinct[probe.fqn]):
        yield Unharvested(error=f"{probe.fqn or 'the root'} is not called any more", hint="Scan again")
        return
    times = 0
    while (times := times + 1) <= _TIMES:
        outcome, record = watched(part, probe, exporting=True)
        if not outcome.passed:
            break
    else:
        yield Unharvested(error="The failure is gone: this module exports now", hint="Scan again")
        return
    yield Harvested(outcome=outcome, exporter=probe.exporter, environment=environment.versions())
    _, eager = watched(part, probe, exporting=False)
    notes: list[str] = []
    remarks = (f"this failure is flaky: it was seen in 1 of {times} attempts",) if times > 1 else ()
    for draft in _drafts(part, probe, record, eager, notes):
        yield msgspec.structs.replace(draft, notes=(*remarks, *draft.notes))
    yield NoMore(notes=tuple(notes))


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
        elif probe.exporter == "export-strict":
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
    return Outcome(probe=probe.id, status="passed")


def _ended(pid: int, pipe: int, probe: Probe) -> Outcome:
    """The child's word, or how it ended."""
    data, fate, deadline = bytearray(), "", time.monotonic() + probe.timeout
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
                fate = "out_of_memory"
        late = time.monotonic() > deadline or time.monotonic() - idle_since > _IDLE
        fate = fate or ("timed_out" if late else "")
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
    return Outcome(probe=probe.id, status=fate or "crashed", signal=sign)  # type: ignore[arg-type]


def _drafts(part: PartCapture, probe: Probe, record: Record, eager: Record, notes: list[str]) -> Iterator[Draft]:
    """Drafts from the barest to the fullest; one that cannot be written leaves a note."""
    both = Record(record.lines | eager.lines, record.codes | eager.codes, record.methods | eager.methods, {})
    ways: list[tuple[str, Record | None, bool, bool]] = [
        ("what ran until it failed, calls of known result replaced", record, True, False),
        ("what ran until it failed", record, False, False),
        ("what ran until it failed, decorators kept", record, False, True),
        ("what runs in eager", both, False, False),
        ("what runs in eager, decorators kept", both, False, True),
        ("everything", None, False, True),
    ]
    seen: set[str] = set()
    for what, run, substitute, decorators in ways:
        if run is not None and not run.lines and run is not both:
            continue
        try:
            draft = _draft(part, probe, what, run, substitute=substitute, decorators=decorators)
        except Exception as error:  # another way may do
            notes.append(f"no script of {what}: {type(error).__name__}: {error}")
            traceback.print_exc()
            continue
        if draft.source not in seen:
            seen.add(draft.source)
            yield draft


def _draft(
    part: PartCapture, probe: Probe, what: str, record: Record | None, *, substitute: bool, decorators: bool
) -> Draft:
    module, call = part.module_at(probe.fqn), part.calls_of(probe.fqn)[probe.call]
    script = Script(part.names, record, substitute, decorators)
    if record is not None:
        script.mentioned = mentioned_names(record, substitute=substitute)
    if probe.opaque:
        script.stands = dict(_stands(script, call))
        script.notes.append("children return tensors of their captured shapes, because they fail themselves")
    shapes = _shapes(part, probe, module)
    spelled = _bundled(inspect.signature(module.forward), call.args, call.kwargs)
    instance = script.instance(module, spelled=spelled)
    if not module.training and any(_cares_for_mode(one) for one in module.modules()):
        instance += ".eval()"
    dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
    if len(dtypes) == 1 and dtypes != {torch.float32}:
        instance += f".to({dtypes.pop()})"
    positional, keywords = _positional(module, call.args, call.kwargs, shapes)
    args, kwargs = script.value(positional, whole=True), script.value(keywords, whole=True)
    dims: dict[str, str] = {}
    told = "" if shapes is None else f", dynamic_shapes={shapes_code(shapes, dims)}"
    ending = [f"{name} = {code}" for name, code in dims.items()]
    given = f"{instance}, {args}"
    named = f", {kwargs}" if keywords else ""
    match probe.exporter:
        case "torchscript":
            script._imports["io"] = None
            named = f", kwargs={kwargs}" if keywords else ""
            ending.append(f"torch.onnx.export({given}, io.BytesIO(){named}, dynamo=False)")
        case "export-strict":
            ending.append(f"torch.export.export({given}{named}{told}, strict=True)")
        case _:
            default = inspect.signature(torch.export.export).parameters["strict"].default
            ending.append(f"torch.export.export({given}{named}{told}{', strict=False' if default else ''})")
    return Draft(what=what, source=script.text(ending), notes=tuple(dict.fromkeys(script.notes)))


def _stands(script: Script, call: Call) -> Iterator[tuple[int, str]]:
    """What each child returned in this call, as code, by its id; left out where that cannot be told."""
    for made in call.inner:
        if made.refusal or made.layout is None:
            continue
        leaves = [
            torch.empty(given.sizes, dtype=given.dtype, device="meta")
            if isinstance(given.sizes, tuple)
            else given.value
            for given in made.given
        ]
        with contextlib.suppress(LookupError):
            yield made.child, script.value(pytree.tree_unflatten(leaves, made.layout), whole=True)


def _positional(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with keywords moved to their places, as far as they follow without a gap."""
    if isinstance(shapes, tuple | list):
        return args, kwargs
    rest, moved = dict(kwargs), list(args)
    for parameter in list(inspect.signature(module.forward).parameters.values())[len(args) :]:
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD or parameter.name not in rest:
            break
        moved.append(rest.pop(parameter.name))
    return tuple(moved), rest


def _cares_for_mode(module: torch.nn.Module) -> bool:
    """Whether training and evaluation differ: dropout, batch norm, or code that asks."""
    return isinstance(module, torch.nn.modules.dropout._DropoutNd | torch.nn.modules.batchnorm._NormBase) or (
        not type(module).__module__.startswith("torch.") and "training" in type(module).forward.__code__.co_names
    )


def _answers(command: Harvest) -> Iterator[AnyHarvestReply]:
    """The replies, whatever goes wrong."""
    try:
        yield from harvest(command)
    except Refusal as refusal:
        yield Unharvested(error=refusal.reply.message, hint=refusal.reply.hint)
    except ExportdoctorError as error:
        yield Unharvested(error=error.message, hint=error.hint)
    except Exception as error:
        traceback.print_exc()
        yield Unharvested(error=f"Harvesting failed: {type(error).__name__}: {error}")


def main() -> None:
    """One command, and then a line for each further reply that is wanted."""
    die_with_parent()
    replies, commands = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for answer in _answers(decode(commands.readline(), Harvest)):
        replies.write(encode(answer) + b"\n")
        replies.flush()
        if not commands.readline():
            return


if __name__ == "__main__":
    main()

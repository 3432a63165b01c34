"""One attempt: export one submodule with one captured call, and report what happened. Nothing is judged here."""

from __future__ import annotations

import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import torch

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.outcome import Agreement, Failure, Frame, Outcome, OutcomeStatus, SymbolOrigin
from exportdoctor.core.probe import Probe
from exportdoctor.shims import ExportCall, NotApplicable, ShimTrouble
from exportdoctor.torch_internals.dynamo_frames import keep_interpreter_frames
from exportdoctor.torch_internals.graph_modules import finish_graphs
from exportdoctor.worker.attempt.fast_export import ExportContext, FastExport
from exportdoctor.worker.attempt.opaque_children import blames_opaque_op, replace_children
from exportdoctor.worker.attempt.shimmed_export import shimmed_export
from exportdoctor.worker.attempt.torchscript import export_torchscript
from exportdoctor.worker.capture.attribute_reads import watch_reads
from exportdoctor.worker.capture.dim_names import all_dynamic, declared_dims, select_dims
from exportdoctor.worker.capture.dynamic_dims import dynamic_shapes_of, spell_out_kwargs
from exportdoctor.worker.capture.forward_hooks import Call
from exportdoctor.worker.capture.session import PartCapture
from exportdoctor.worker.describe.describe_failure import cause_chain, describe_failure
from exportdoctor.worker.describe.guard_origin import GuardLog, record_guards
from exportdoctor.worker.describe.partial_graph import partial_graph, trace_progress
from exportdoctor.worker.describe.symbol_origins import SymbolOrigins, record_symbol_origins
from exportdoctor.worker.describe.trace_slice import slice_trace
from exportdoctor.worker.translate.later_stages import StageFailed, run_later_stages

_LATER = frozenset({"onnx", "ort"})
"""What a probe asks for beyond the export: the translation, or the file loaded, run and compared as well."""

Shapes = dict[str, Any] | tuple[Any, ...] | list[Any] | None


def _non_strict(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Shapes) -> Any:
    program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    finish_graphs(program)
    return program


def _strict(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Shapes) -> Any:
    with keep_interpreter_frames():
        return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=True)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "export": _non_strict,
    "export-strict": _strict,
    "torchscript": export_torchscript,
}


def attempt(part: PartCapture, probe: Probe, *, shim_files: Sequence[str] = ()) -> Outcome:
    """Run `probe` in this process, which a failure may leave in a bad state. What the export raises is a result.

    `shim_files` are the user's own, among which the probe's shims are looked up.
    """
    return _attempt(part, probe, shim_files=shim_files, saving=nullcontext)


def attempt_fast(part: PartCapture, probe: Probe, *, shim_files: Sequence[str] = ()) -> Outcome | None:
    """As `attempt`, but faster. None if the outcome may differ: then run `attempt`, in a fresh process."""
    if not EXPORTERS[probe.exporter].has_fast_path:
        return attempt(part, probe, shim_files=shim_files)
    fast = FastExport()
    outcome = _attempt(part, probe, shim_files=shim_files, saving=fast.within)
    return None if fast.may_differ(outcome) else outcome


def _attempt(part: PartCapture, probe: Probe, *, shim_files: Sequence[str], saving: ExportContext) -> Outcome:
    module = part.module_at(probe.fqn)
    call = part.calls_of(probe.fqn)[probe.call]
    started = time.perf_counter()
    reads: set[tuple[str, str]] | None = None
    origins = SymbolOrigins()
    guards = GuardLog()
    kept: tuple[str, ...] = ()
    numbers: tuple[Agreement, ...] = ()
    status: OutcomeStatus
    stages: dict[str, str] = {"export": "pass"}
    try:
        with (
            part.prepare(),
            watch_reads(module, probe.watch) as reads,
            record_symbol_origins() as origins,
            record_guards() as guards,
            _opaque_children(part, probe, call) as kept,
            _spelled_out(part, probe, module, call),
        ):
            shapes = shapes_for(part, probe, module)
            if probe.shims or probe.to == "run":
                given = _export_call(part, probe, call, shapes)
                numbers = shimmed_export(given, probe, files=shim_files, axes=part.built.axes, saving=saving)
            else:
                with saving():
                    program = _FUNCTIONS[probe.exporter](module, call.args, call.kwargs, shapes)
                if probe.to in _LATER and EXPORTERS[probe.exporter].makes_program:
                    stages |= run_later_stages(program, module, call, to=probe.to, prefix=probe.fqn)
    except StageFailed as error:
        stages |= {**dict.fromkeys(error.passed, "pass"), error.stage: "fail"}
        _log(error.__cause__ or error, "")
        facts = {"failure": error.failure, "numbers": error.numbers, "stages": stages}
        return _outcome(probe, OutcomeStatus.FAILED, started, reads=reads, kept=kept, **facts)
    except (NotApplicable, ShimTrouble) as error:
        status = OutcomeStatus.NOT_APPLICABLE if isinstance(error, NotApplicable) else OutcomeStatus.SHIM_TROUBLE
        return _outcome(probe, status, started, reads=None, kept=(), note=str(error))
    except (Exception, SystemExit, GeneratorExit) as error:
        chain = tuple(cause_chain(error))
        if probe.opaque and blames_opaque_op(chain):
            _log(error, "")
            return _outcome(probe, OutcomeStatus.NOT_APPLICABLE, started, reads=None, kept=kept, note=_note(error))
        failure = _failure(error, chain, part, probe, origins=origins.of(chain), guard=guards.frame_of_violated(chain))
        _log(error, partial_graph(chain))
        status = OutcomeStatus.OUT_OF_MEMORY if isinstance(error, MemoryError) else OutcomeStatus.FAILED
        return _outcome(probe, status, started, failure=failure, stages={"export": "fail"}, reads=reads, kept=kept)
    if numbers:
        stages["numbers"] = "pass" if all(row.holds for row in numbers) else "fail"
    status = OutcomeStatus.FAILED if "fail" in stages.values() else OutcomeStatus.PASSED
    return _outcome(probe, status, started, stages=stages, reads=reads, kept=kept, numbers=numbers)


def _export_call(part: PartCapture, probe: Probe, call: Call, shapes: Shapes) -> ExportCall:
    """What shims change; other sizes are known of the part's own inputs alone."""
    more = part.built.more_inputs if probe.fqn == part.prefix else ()
    return ExportCall(
        module=part.module_at(probe.fqn),
        args=call.args,
        kwargs=call.kwargs,
        dynamic_shapes=shapes,
        more_inputs=tuple(more),
    )


def _failure(
    error: BaseException,
    chain: tuple[BaseException, ...],
    part: PartCapture,
    probe: Probe,
    *,
    origins: tuple[SymbolOrigin, ...],
    guard: Frame | None,
) -> Failure:
    """The failure of an error, with what was recorded while it was raised."""
    failure = describe_failure(error, stage="export", names=part.names)
    leads, note = slice_trace(chain, origins, exporter=probe.exporter)
    traced, entered = trace_progress(chain)
    return msgspec.structs.replace(
        failure, origins=origins, guard=guard, slice=leads, slice_note=note, traced=traced, entered=entered
    )


def _note(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error, 200)}"


def _log(error: BaseException, graph: str) -> None:
    """Write what a report has no room for to the attempt's log; torch itself prints the graph of some failures."""
    if graph and not hasattr(error, "partial_fx_graph"):
        print(f"The graph that had been traced:\n{graph}\n", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)


def shapes_for(part: PartCapture, probe: Probe, module: torch.nn.Module) -> Shapes:
    """The target's own dynamic shapes for the root; for a submodule those that differ between two captures."""
    call = part.calls_of(probe.fqn)[probe.call]
    if probe.fqn != part.prefix:
        return dynamic_shapes_of(module, call.args, call.kwargs, select_dims(call, all_dynamic(call), probe.dynamic))
    if probe.dynamic is None:
        return part.dynamic_shapes
    return dynamic_shapes_of(
        module, call.args, call.kwargs, select_dims(call, declared_dims(part.built), probe.dynamic)
    )


def _spelled_out(part: PartCapture, probe: Probe, module: torch.nn.Module, call: Call) -> AbstractContextManager[None]:
    if not call.dims and (probe.fqn != part.prefix or probe.dynamic is None):
        return nullcontext()
    return spell_out_kwargs(module, call.args, call.kwargs)


def _opaque_children(part: PartCapture, probe: Probe, call: Call) -> AbstractContextManager[tuple[str, ...]]:
    if not probe.opaque:
        return nullcontext(())
    return replace_children(call.inner, call.inner_there, part.by_id())


def _outcome(
    probe: Probe,
    status: OutcomeStatus,
    started: float,
    *,
    reads: set[tuple[str, str]] | None,
    kept: tuple[str, ...],
    **facts: Any,
) -> Outcome:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Outcome(
        probe=probe.id,
        status=status,
        seconds=round(time.perf_counter() - started, 4),
        peak_rss_mb=round(peak, 1),
        reads=None if reads is None else tuple(sorted(reads)),
        kept_children=kept,
        **facts,
    )

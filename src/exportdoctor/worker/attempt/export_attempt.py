"""One attempt: export one submodule with one captured call, and report what happened. Nothing is judged here."""

from __future__ import annotations

import dataclasses
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import torch

from exportdoctor.core.exception_text import text_of
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.kinds import SIZES_REFUSED
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.records.outcome import (
    Agreement,
    ExceptionFact,
    Failure,
    Frame,
    Ground,
    Outcome,
    OutcomeStatus,
    Stage,
    Violation,
)
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.versions import is_in_range
from exportdoctor.shims import ExportCall, NotApplicable, ShimTrouble
from exportdoctor.shims.export_call import has_bundle
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.sizes.fitted_shapes import fit_shapes, has_structure_of_inputs, shapes_code
from exportdoctor.torch_internals.dynamo_frames import keep_interpreter_frames
from exportdoctor.torch_internals.graph_modules import finish_graphs
from exportdoctor.torch_internals.shape_env import NEW_SYMBOLS
from exportdoctor.torch_internals.trees import tree_map_only
from exportdoctor.worker.attempt.cost import CostSamples, watch_cost
from exportdoctor.worker.attempt.fast_export import FastExport, InDoubt, NextAttempt, leave_in_doubt
from exportdoctor.worker.attempt.fixed_axes import find_fixed_axes, find_refusing_guard
from exportdoctor.worker.attempt.opaque_submodules import blames_opaque_op, replace_submodules
from exportdoctor.worker.attempt.shimmed_export import shimmed_export
from exportdoctor.worker.attempt.torchscript import export_torchscript
from exportdoctor.worker.capture.attribute_reads import watch_reads
from exportdoctor.worker.capture.constant_inputs import hold_constant_inputs
from exportdoctor.worker.capture.dynamic_dims import spell_out_kwargs, take_sizes_as_tuples
from exportdoctor.worker.capture.forward_hooks import Call
from exportdoctor.worker.capture.session import PartCapture, Shapes, shapes_of_call
from exportdoctor.worker.describe.describe_failure import cause_chain, describe_failure
from exportdoctor.worker.describe.guard_origin import Guard, GuardLog, record_guards
from exportdoctor.worker.describe.module_stack import innermost_module
from exportdoctor.worker.describe.own_fault import own_fault
from exportdoctor.worker.describe.partial_graph import partial_graph, trace_progress
from exportdoctor.worker.describe.symbol_origins import SymbolOrigins, record_symbol_origins
from exportdoctor.worker.describe.trace_slice import slice_trace
from exportdoctor.worker.describe.value_origins import find_value_origin
from exportdoctor.worker.describe.wrong_fakes import find_wrong_fake
from exportdoctor.worker.prove.ground import disturb_each
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.translate.later_stages import EagerRun, StageFailed, run_eager, run_later_stages

_LATER = frozenset({"decomposed", "onnx", "ort"})
"""What a probe asks for beyond the export: the translation, or the file loaded, run and compared as well."""

_NO_MEMORY = (MemoryError, torch.cuda.OutOfMemoryError)
_NO_SHAPES_OF_BUNDLES = "<2.14"
"""Releases of torch that take no dynamic shapes of keywords in **kwargs."""
_LONGEST_SHAPES = 2000
"""Characters of dynamic shapes that are worth showing."""


def _non_strict(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Shapes) -> Any:
    program = _export_function()(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    finish_graphs(program)
    return program


def _strict(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Shapes) -> Any:
    with keep_interpreter_frames():
        return _export_function()(module, args, kwargs, dynamic_shapes=shapes, strict=True)


def _export_function() -> Callable[..., Any]:
    """`torch.export.export`, which may be the target's own by now. Raises TypeError where the target took it away."""
    export = getattr(torch.export, "export", None)
    if not callable(export):
        raise TypeError("torch.export.export is no function: code of the target has replaced it")
    return export  # type: ignore[no-any-return]


EXPORTER_CALLS: Mapping[str, Callable[..., Any]] = {
    "export": _non_strict,
    "export-strict": _strict,
    "torchscript": export_torchscript,
}


def attempt(part: PartCapture, probe: Probe, *, shim_files: Sequence[str] = ()) -> Outcome:
    """Run `probe` in this process, which a failure may leave in a bad state. What the export raises is a result.

    `shim_files` are the user's own, among which the probe's shims are looked up.
    """
    return _Attempt(part=part, probe=probe, shim_files=shim_files).run()


def attempt_without_shortcuts(
    part: PartCapture, probe: Probe, *, shim_files: Sequence[str] = ()
) -> Outcome | NextAttempt:
    """As `attempt`, but where eager is slow an export that passes is to be made again, by it, in a fresh process."""
    try:
        return _Attempt(part=part, probe=probe, shim_files=shim_files, leaves_doubt=True).run()
    except InDoubt:
        return NextAttempt.IN_FULL


def attempt_fast(
    part: PartCapture, probe: Probe, *, shim_files: Sequence[str] = (), will_pass: bool = False
) -> Outcome | NextAttempt:
    """As `attempt`, but faster; how to attempt it again, in a fresh process, if the outcome may differ. If it probably
    `will_pass`, all input sets are made before the export, also where eager is slow."""
    if not EXPORTERS[probe.exporter].has_fast_path:
        return attempt(part, probe, shim_files=shim_files)
    fast = FastExport(will_pass=will_pass or probe.to == "compare")
    try:
        outcome = _Attempt(part=part, probe=probe, shim_files=shim_files, fast=fast, leaves_doubt=not will_pass).run()
    except InDoubt:
        return NextAttempt.IN_FULL
    if not fast.may_differ(outcome):
        return outcome
    return NextAttempt.IN_FULL if outcome.passed else NextAttempt.WITHOUT_SHORTCUTS


@dataclass(kw_only=True)
class _Attempt:
    """A probe while it runs, and what is recorded of it: attribute reads, children kept, symbols and guards.

    With shortcuts, `fast`, it raises InDoubt where a check was skipped and more than the export is asked; if it
    `leaves_doubt`, where the export passes and not all input sets were made before.
    """

    part: PartCapture
    probe: Probe
    shim_files: Sequence[str]
    fast: FastExport | None = None
    leaves_doubt: bool = False
    started: float = field(default_factory=time.perf_counter)
    reads: set[tuple[str, str]] | None = None
    kept: tuple[str, ...] = ()
    ground: Ground | None = None
    fixed: tuple[str, ...] | None = None
    refusal: Failure | None = None
    lost_writes: tuple[str, ...] = ()
    is_random: bool = False
    is_tied: bool = False
    origins: SymbolOrigins = field(default_factory=SymbolOrigins)
    guards: GuardLog = field(default_factory=GuardLog)

    def __post_init__(self) -> None:
        self.module = self.part.module_at(self.probe.fqn)
        self.call = self.part.calls_of(self.probe.fqn)[self.probe.call]
        if self.probe.fqn != self.part.prefix:
            self.call = _outside_inference(self.call)

    def run(self) -> Outcome:
        """Export, and go as far as the probe asks. Where our own code fails beside that, the outcome says so."""
        try:
            return self._run()
        except _NO_MEMORY as error:
            fact = ExceptionFact(type=type(error).__name__, message=str(error))
            failure = Failure(stage="export", exceptions=(fact,))
            return self._outcome(OutcomeStatus.OUT_OF_MEMORY, failure=failure, reads=None)
        except Exception as error:
            _log(error, "")
            note = own_fault(error) or f"{type(error).__name__}: {first_line(error, 200)}"
            return self._outcome(OutcomeStatus.OWN_FAULT, note=note, reads=None)

    def _run(self) -> Outcome:
        stages = {} if self.probe.to == "ground" else {"export": "pass"}
        try:
            later, numbers = self._export()
        except StageFailed as error:
            _log(error.__cause__ or error, "")
            stages |= {**dict.fromkeys(error.passed, "pass"), error.stage: "fail"}
            return self._outcome(OutcomeStatus.FAILED, failure=error.failure, numbers=error.numbers, stages=stages)
        except (NotApplicable, ShimTrouble) as error:
            self.reads, self.kept = None, ()
            refused = isinstance(error, NotApplicable)
            status = OutcomeStatus.NOT_APPLICABLE if refused else OutcomeStatus.SHIM_TROUBLE
            return self._outcome(status, note=str(error))
        except (Exception, SystemExit, GeneratorExit, KeyboardInterrupt) as error:
            return self._failure_outcome(error)
        stages |= later
        if numbers:
            stages["numbers"] = "pass" if all(row.holds for row in numbers) else "fail"
        status = OutcomeStatus.FAILED if "fail" in stages.values() else OutcomeStatus.PASSED
        return self._outcome(status, stages=stages, numbers=numbers)

    def _export(self) -> tuple[dict[str, str], tuple[Agreement, ...]]:
        """The later stages that passed, and how the program's numbers agree with eager's."""
        part, probe, module = self.part, self.probe, self.module
        with (
            part.prepare(),
            watch_reads(module, probe.watch) as self.reads,
            record_symbol_origins() as self.origins,
            record_guards() as self.guards,
            self._opaque_submodules() as self.kept,
            self._describable_inputs(),
        ):
            call = self.call
            if probe.to == "ground":
                self.ground = disturb_each(module, (call.args, call.kwargs), part.names)
                return {}, ()
            shapes = self._shapes()
            if probe.shims or probe.to in ("run", "compare"):
                return self._export_with_shims(shapes)
            eager = self._run_eager(shapes)
            with watch_cost(probe, sys._getframe()) as cost:
                with self._shortcuts():
                    program = EXPORTER_CALLS[probe.exporter](module, call.args, call.kwargs, shapes)
                self._refuse_cost(cost, "export", ())
                if probe.to not in _LATER or not EXPORTERS[probe.exporter].makes_program:
                    return {}, ()
                self._require_checks()
                later = self._run_later_stages(program, (call.args, call.kwargs), eager)
                self._refuse_cost(cost, "decompose" if probe.to == "decomposed" else "translate", ("export",))
                return later, ()

    def _export_with_shims(self, shapes: Shapes) -> tuple[dict[str, str], tuple[Agreement, ...]]:
        """What `_export` returns; under the shims the program also goes through the later stages that are asked."""
        probe, later = self.probe, dict[str, str]()
        eager = self._run_eager(shapes)  # while no shim is active

        def go_on(program: Any, given: ExportCall) -> None:
            if probe.to in _LATER:
                later.update(self._run_later_stages(program, (given.args, given.kwargs), eager, given.convert))

        rows = shimmed_export(
            self._export_call(shapes),
            probe,
            files=self.shim_files,
            axes=self.part.built.axes,
            saving=self._shortcuts,
            go_on=go_on,
            see=self._see_program,
            see_refused=self._see_refused,
            in_doubt=leave_in_doubt if self.leaves_doubt else None,
        )
        return later, rows

    def _run_eager(self, shapes: Shapes) -> EagerRun | None:
        """What an ONNX file is compared with, also at other sizes."""
        return run_eager(self.module, (self.call.args, self.call.kwargs), self.probe, self._export_call(shapes))

    def _run_later_stages(
        self, program: Any, inputs: Inputs, eager: EagerRun | None, *convert: Callable[[Inputs], Inputs]
    ) -> dict[str, str]:
        passed = run_later_stages(program, self.module, inputs, self.probe, eager, *convert)
        self.lost_writes, self.is_random, self.is_tied = passed.lost_writes, passed.is_random, passed.is_tied
        return passed.ends

    def _shortcuts(self) -> AbstractContextManager[None]:
        return nullcontext() if self.fast is None else self.fast.within()

    def _require_checks(self) -> None:
        if self.fast is not None:
            self.fast.require_checks()

    def _see_program(self, program: Any, given: ExportCall) -> None:
        """Note which sizes are constants in the program of the part's root."""
        self._require_checks()
        if self.probe.fqn == self.part.prefix:
            call = self._export_call(self._shapes())
            self.fixed = find_fixed_axes(program, call, given, self.part.built.axes)

    def _see_refused(self, program: Any, given: ExportCall, one: InputSet, row: Agreement) -> None:
        """Note the guard by which the program of the part's root refuses sizes that eager takes."""
        if self.probe.fqn != self.part.prefix or self.refusal is not None:
            return
        call = self._export_call(self._shapes())
        guard = find_refusing_guard(program, call, given, self.guards, one.inputs)
        if guard is not None:
            fact = ExceptionFact(type=SIZES_REFUSED, message=row.trouble)
            self.refusal = Failure(stage="export", exceptions=(fact,), **self._facts_of(guard))

    def _refuse_cost(self, cost: CostSamples | None, stage: Stage, passed: tuple[Stage, ...]) -> None:
        """Raise StageFailed where the attempt has taken more than the user allows."""
        failure = cost.excess(self.part.names, stage) if cost is not None else None
        if failure is not None:
            raise StageFailed(stage, failure, passed)

    def _opaque_submodules(self) -> AbstractContextManager[tuple[str, ...]]:
        if not self.probe.opaque:
            return nullcontext(())
        return replace_submodules(self.call.inner, self.call.inner_there, self.part.by_id())

    @contextmanager
    def _describable_inputs(self) -> Iterator[None]:
        """Within it the inputs of the call are such as a program takes, and as torch takes dynamic sizes for."""
        given, args, kwargs = self.call, self.call.args, self.call.kwargs
        is_root = self.probe.fqn == self.part.prefix
        with ExitStack() as stack:
            if not is_root:
                args, kwargs = stack.enter_context(hold_constant_inputs(self.module, args, kwargs))
            if given.dims or (is_root and self.probe.dynamic is not None):
                args, kwargs = stack.enter_context(take_sizes_as_tuples(self.module, args, kwargs))
                stack.enter_context(spell_out_kwargs(self.module, args, kwargs))
            self.call = dataclasses.replace(given, args=args, kwargs=kwargs)
            try:
                yield
            finally:
                self.call = given

    def _shapes(self) -> Shapes:
        return shapes_of_call(self.part, self.probe, self.module, self.call)

    def _export_call(self, shapes: Shapes) -> ExportCall:
        """The call that shims change."""
        args, kwargs, more = self.call.args, self.call.kwargs, self._other_inputs()
        return ExportCall(module=self.module, args=args, kwargs=kwargs, dynamic_shapes=shapes, more_inputs=more)

    def _other_inputs(self) -> tuple[Inputs, ...]:
        """Those of other sizes, which are known for the part's root only."""
        return tuple(self.part.built.more_inputs) if self.probe.fqn == self.part.prefix else ()

    def _failure_outcome(self, error: BaseException) -> Outcome:
        chain = tuple(cause_chain(error))
        if self.probe.opaque and blames_opaque_op(chain):
            _log(error, "")
            note = f"{type(error).__name__}: {first_line(error, 200)}"
            return self._outcome(OutcomeStatus.NOT_APPLICABLE, note=note, reads=None)
        if fault := own_fault(error):
            _log(error, "")
            return self._outcome(OutcomeStatus.OWN_FAULT, note=fault, reads=None)
        failure = self._describe(error, chain)
        _log(error, partial_graph(chain))
        status = OutcomeStatus.OUT_OF_MEMORY if isinstance(error, _NO_MEMORY) else OutcomeStatus.FAILED
        return self._outcome(status, failure=failure, stages={"export": "fail"})

    def _describe(self, error: BaseException, chain: tuple[BaseException, ...]) -> Failure:
        """The failure of an error, with what was recorded while it was raised."""
        origins = self.origins.of(chain)
        leads, note = slice_trace(chain, origins, exporter=self.probe.exporter)
        traced, entered = trace_progress(chain)
        guard = self.guards.find_violated(chain)
        return msgspec.structs.replace(
            describe_failure(error, stage="export", names=self.part.names),
            origins=origins,
            **self._facts_of(guard),
            violations=tuple(
                Violation(entry=entry, **self._facts_of(one)) for entry, one in self.guards.find_each(chain).items()
            ),
            wrong_fake=find_wrong_fake(chain) if guard is None and not origins else None,
            value_origin=self._find_value_origin(chain),
            unbacked=len(self.origins.by_symbol) if NEW_SYMBOLS.is_supported() else None,
            slice=leads,
            slice_note=note,
            traced=traced,
            entered=entered,
            fitted_shapes=self._fitted_shapes(chain),
        )

    def _fitted_shapes(self, chain: tuple[BaseException, ...]) -> str:
        """The shapes as torch wants them, where it refuses their structure."""
        shapes, inputs = self._shapes(), (self.call.args, self.call.kwargs)
        named = any(re.search(r"dynamic_shape|^Node \w+ mismatch", text_of(one)) for one in chain)
        if not (named and shapes) or has_structure_of_inputs(self.module, inputs, shapes):
            return ""
        if has_bundle(self.module, self.call.kwargs) and is_in_range(torch.__version__, _NO_SHAPES_OF_BUNDLES):
            return ""
        fitted = fit_shapes(self.module, inputs, shapes)
        try:
            code = shapes_code(fitted) if fitted is not None else ""
        except ValueError:
            return ""  # there is no code for what it holds
        return code if len(code) <= _LONGEST_SHAPES else ""

    def _facts_of(self, guard: Guard | None) -> dict[str, Any]:
        """What a failure says of the guard that it violates."""
        if guard is None:
            return {}
        module = innermost_module(guard.running, self.part.names) if guard.frame is not None else None
        return {
            "guard": guard.frame,
            "guarded_by": guard.asker.operation,
            "fixed_by": guard.fixed_by,
            "guard_module": module,
        }

    def _find_value_origin(self, chain: tuple[BaseException, ...]) -> Frame | None:
        """The line that made a value which torch refused when the forward was over."""
        again = dataclasses.replace(self, fast=None)
        strict = EXPORTERS[self.probe.exporter].traces_with_dynamo
        return find_value_origin(chain, partial(self._run_and_raise, chain) if strict else again._export, self.module)

    def _run_and_raise(self, chain: tuple[BaseException, ...]) -> None:
        """The forward without dynamo, which runs no frame of it, and then what dynamo raised."""
        with self.part.prepare(), torch.no_grad():
            self.module(*self.call.args, **self.call.kwargs)
        raise chain[0]

    def _outcome(self, status: OutcomeStatus, **facts: Any) -> Outcome:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        reads = None if self.reads is None else tuple(sorted(self.reads))
        return Outcome(
            probe=self.probe.id,
            status=status,
            seconds=round(time.perf_counter() - self.started, 4),
            peak_rss_mb=round(peak, 1),
            kept_children=self.kept,
            ground=self.ground,
            fixed=self.fixed,
            refusal=self.refusal,
            lost_writes=self.lost_writes,
            is_random=self.is_random,
            is_tied=self.is_tied,
            **{"reads": reads, **facts},
        )


def _log(error: BaseException, graph: str) -> None:
    """Write what a report has no room for to the attempt's log; torch itself prints the graph of some failures."""
    if graph and not hasattr(error, "partial_fx_graph"):
        print(f"The graph that had been traced:\n{graph}\n", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)


def _outside_inference(call: Call) -> Call:
    """The call of a submodule with copies of inference tensors, which a parent makes under `torch.inference_mode`: with
    gradients, torch refuses these wherever they are used, and an export of the submodule is given others."""
    copies: dict[int, torch.Tensor] = {}

    def copy_of(tensor: torch.Tensor) -> torch.Tensor:
        return copies.setdefault(id(tensor), tensor.clone()) if tensor.is_inference() else tensor

    args, kwargs = tree_map_only(torch.Tensor, copy_of, (call.args, call.kwargs))
    return dataclasses.replace(call, args=args, kwargs=kwargs) if copies else call

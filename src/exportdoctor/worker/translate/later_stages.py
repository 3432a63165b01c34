"""The stages after an export: decomposition, or translation to ONNX, and with real values its file run and compared.

A failure there is described like any other: with the submodule and the line that the graph's node came from.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from exportdoctor.core.failure.kinds import NUMBERS_DIFFER
from exportdoctor.core.failure.messages import AT_OTHER_SIZES, FIRST_TO_DIFFER, OTHERWISE_DECOMPOSED
from exportdoctor.core.protocol.export import StageFailure
from exportdoctor.core.records.outcome import Agreement, ExceptionFact, Failure, Frame, OpFact, Stage
from exportdoctor.core.records.probe import Probe
from exportdoctor.report import wording
from exportdoctor.shims import ExportCall
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import copy_inputs, run_once
from exportdoctor.targets.training_mode import in_training_mode
from exportdoctor.torch_internals.fake_tensors import has_fakes
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.describe.describe_failure import cause_chain, qualified_name
from exportdoctor.worker.describe.own_fault import own_fault
from exportdoctor.worker.prove.compare_outputs import are_nan, compare_outputs
from exportdoctor.worker.prove.cure_inputs import cure_inputs, drawer_for
from exportdoctor.worker.prove.input_set import sizes_of
from exportdoctor.worker.prove.own_buffers import own_buffers
from exportdoctor.worker.prove.rounding import moves_as_far
from exportdoctor.worker.prove.tied_choices import chooses_as_eager_may
from exportdoctor.worker.translate.failed_node import describe_stage_failure, fx_fact, with_node
from exportdoctor.worker.translate.onnx_first_difference import first_differing_node
from exportdoctor.worker.translate.onnx_program import (
    check_model,
    flat_inputs,
    flat_outputs,
    runnable,
    save_model,
    translate,
)
from exportdoctor.worker.translate.onnx_session import OnnxSession


class StageFailed(Exception):
    """A stage after the export failed, or its numbers are not eager's. `passed` are the stages before it."""

    def __init__(
        self, stage: Stage, failure: Failure, passed: tuple[Stage, ...], numbers: tuple[Agreement, ...] = ()
    ) -> None:
        super().__init__(stage)
        self.stage, self.failure, self.passed, self.numbers = stage, failure, passed, numbers


@dataclass(frozen=True)
class PassedStages:
    """How the stages ended, by name, and the buffers and inputs that the ONNX file leaves as they are. `is_random`: its
    numbers are others than eager's, which draws them at random. `is_tied`: it chooses otherwise among equal values."""

    ends: dict[str, str]
    lost_writes: tuple[str, ...] = ()
    is_random: bool = False
    is_tied: bool = False


@dataclass(frozen=True)
class EagerRun:
    """What eager gives for the captured call, and whether it gives something else with other random numbers. `others`
    are inputs of other sizes, each with what eager gives for it."""

    output: Any
    is_random: bool
    others: tuple[tuple[Inputs, Any], ...] = ()


def run_eager(module: torch.nn.Module, inputs: Inputs, probe: Probe, call: ExportCall | None = None) -> EagerRun | None:
    """What an ONNX file is compared with, also at the other sizes of `call`; None where none is run, or it fails. Call
    it while no shim is active."""
    if probe.to != "ort" or has_fakes(module, inputs):
        return None
    try:
        output = run_once(module, inputs)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(torch.initial_seed() + 1)
            other = run_once(module, inputs)
    except Exception:  # a submodule that runs inside its parent alone
        return None
    others: list[tuple[Inputs, Any]] = []
    with suppress(Exception):  # what eager refuses ends them
        others += other_sizes(call) if call is not None else ()
    return EagerRun(output, not compare_outputs("", tree_leaves(other), tree_leaves(output)).holds, tuple(others))


def other_sizes(call: ExportCall) -> Iterator[tuple[Inputs, Any]]:
    """Inputs of other sizes, if it has any, each with what eager gives."""
    if not call.more_inputs:
        return
    sets = cure_inputs(call)
    example = next(sets)
    drawn = (one for one in drawer_for(call, example).draw_primes() if one.kind == "sizes")
    for one in itertools.chain(itertools.islice(sets, len(call.more_inputs)), drawn):
        yield one.inputs, one.results[0].output


def run_later_stages(
    program: Any,
    module: torch.nn.Module,
    inputs: Inputs,
    probe: Probe,
    eager: EagerRun | None,
    convert: Callable[[Inputs], Inputs] = lambda inputs: inputs,
) -> PassedStages:
    """Decompose or translate the program of `module`; with `probe.to` = ort load, run and compare the file.

    `inputs` are those of the program, and `convert` makes such of others. Raises StageFailed. Without real values,
    where there is no `eager`, only the translation is tried: an ONNX file with fake weights cannot run.
    """
    prefix = probe.fqn
    if probe.to == "decomposed":
        _stage("decompose", program.run_decompositions, (), prefix)
        return PassedStages({"decompose": "pass"})
    if eager is None:
        translated = _stage("translate", lambda: translate(program, optimise=False), (), prefix)
        return PassedStages({"translate": "pass"}, translated.lost_writes)
    passed: tuple[Stage, ...] = ()
    is_right = any(_answered_rightly(program, [(inputs, eager.output)]))
    others = [] if eager.is_random else [*_answered_rightly(program, eager.others, convert)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        translated = _stage("translate", lambda: translate(program), passed, prefix)
        passed = ("translate",)

        def load() -> OnnxSession:
            save_model(translated.made, path, external_data=False)
            check_model(path)
            return OnnxSession(path)

        session = _stage("load", load, passed, prefix, path)
        passed = (*passed, "load")
        given = flat_inputs(program, *copy_inputs(inputs))
        answers = _stage("run", lambda: session.run(given), passed, prefix, path)
        passed = (*passed, "run")
        file = _File(program, module, translated.made, session, prefix, passed)
        row = compare_outputs("the captured call", answers, flat_outputs(program, eager.output))
        if not row.holds and not eager.is_random and moves_as_far(module, inputs, eager.output, row):
            row = msgspec.structs.replace(row, tolerance=row.max_abs)
        tied = not row.holds and not eager.is_random and file.is_tied(inputs, eager.output, answers)
        row = Agreement(inputs=row.inputs) if tied else row
        if not row.holds and eager.is_random:
            return PassedStages(dict.fromkeys(passed, "pass"), translated.lost_writes, is_random=True)
        if not row.holds:
            failure = file.difference(row, copy_inputs(inputs), is_right=is_right)
            failure = msgspec.structs.replace(failure, in_training=in_training_mode(module))
            raise StageFailed("numbers", failure, passed, (row,))
        for other, wanted in others:
            tied |= file.compare_at(other, wanted)
    shown = are_nan(list(answers))
    told = passed if shown and all(shown) else (*passed, "numbers")  # NaN that agrees with NaN shows nothing
    return PassedStages(dict.fromkeys(told, "pass"), translated.lost_writes, is_tied=tied)


def _stage(stage: Stage, work: Any, passed: tuple[Stage, ...], prefix: str, model: Path | None = None) -> Any:
    try:
        return work()
    except Exception as error:
        if own_fault(error):
            raise
        raise StageFailed(stage, _failure(stage, error, prefix, model), passed) from error


def _answered_rightly(
    program: Any, others: Iterable[tuple[Inputs, Any]], convert: Callable[[Inputs], Inputs] = lambda inputs: inputs
) -> Iterator[tuple[Inputs, Any]]:
    """Those of the inputs, each with eager's answer, on which the exported program gives that, as it takes them."""
    for one, wanted in others:
        try:
            inputs = convert(copy_inputs(one))
            right = _run(program, inputs)
        except Exception:  # it takes no such sizes
            continue
        if compare_outputs("", right, tree_leaves(wanted)).holds:
            yield inputs, wanted


def _run(program: Any, inputs: Inputs) -> list[Any]:
    """What a program gives, which is left as it is."""
    module, (args, kwargs) = runnable(program), copy_inputs(inputs)
    own_buffers(module)
    return tree_leaves(module(*args, **kwargs))


@dataclass(frozen=True)
class _File:
    """A loaded file of `program`, that of `module`, which `made` is torch.onnx's model of. It has `passed` these
    stages."""

    program: Any
    module: torch.nn.Module
    made: Any
    session: OnnxSession
    prefix: str
    passed: tuple[Stage, ...]

    def difference(self, row: Agreement, inputs: Inputs, *, is_right: bool) -> Failure:
        """The failure of a file that gives other numbers, at the node where they begin, if there is one. `is_right`:
        the program gives eager's."""
        said = wording.numbers_differ(row)
        try:
            found = first_differing_node(self.made, self.program, inputs)
        except Exception:  # values in between that onnxscript does not make outputs of the model
            found = None
        if found is None:
            said = f"{said}; {OTHERWISE_DECOMPOSED}" if is_right and self._is_decomposed_otherwise(inputs) else said
            return Failure(stage="numbers", exceptions=(ExceptionFact(type=NUMBERS_DIFFER, message=said),))
        node, differs = found
        fact = fx_fact(node)
        message = f"{said}; {FIRST_TO_DIFFER}{fact.op}: it {differs}"
        described = with_node(StageFailure(stage="numbers", exception="", message=""), fact, self.prefix)
        return _at_node(described, ExceptionFact(type=NUMBERS_DIFFER, message=message), self.prefix)

    def _run_at(self, flat: Any, inputs: Inputs) -> Any:
        try:
            return self.session.run(flat)
        except Exception as error:
            failure = _failure("run", error, self.prefix, self.session.file)
            if self._is_decomposed_otherwise(inputs):
                first, *rest = failure.exceptions
                said = msgspec.structs.replace(first, message=f"{first.message} ({OTHERWISE_DECOMPOSED})")
                failure = msgspec.structs.replace(failure, exceptions=(said, *rest))
            raise StageFailed("run", failure, self.passed[:-1]) from error

    def _is_decomposed_otherwise(self, inputs: Inputs) -> bool:
        """Whether what torch.onnx decomposes the program to fails on these, or gives what the file gives."""
        try:
            found = _run(self.made.exported_program, inputs)
            answers = self.session.run(flat_inputs(self.program, *copy_inputs(inputs)))
        except Exception:  # what it is traced for are other sizes
            return True
        return compare_outputs("", found, list(answers)).holds

    def is_tied(self, inputs: Inputs, wanted: Any, answers: Sequence[torch.Tensor]) -> bool:
        """Whether the file differs from eager in its choice among equal values alone."""

        def compare(output: Any) -> Agreement:
            return compare_outputs("", answers, flat_outputs(self.program, output))

        return chooses_as_eager_may(self.module, inputs, wanted, answers, compare)

    def compare_at(self, inputs: Inputs, wanted: Any) -> bool:
        """Run it at another size, which the program answers rightly; whether it chooses otherwise among equal values.
        Raises StageFailed where it fails or differs."""
        flat, expected = flat_inputs(self.program, *copy_inputs(inputs)), flat_outputs(self.program, wanted)
        answers = self._run_at(flat, inputs)
        row = compare_outputs(sizes_of(inputs), answers, expected)
        if row.holds:
            return False
        if self.is_tied(inputs, wanted, answers):
            return True
        if not moves_as_far(self.module, inputs, wanted, row):
            failure = self.difference(row, inputs, is_right=True)
            first, *rest = failure.exceptions
            said = msgspec.structs.replace(first, message=f"{AT_OTHER_SIZES}{row.inputs}: {first.message}")
            raise StageFailed(
                "numbers", msgspec.structs.replace(failure, exceptions=(said, *rest)), self.passed, (row,)
            )
        return False


def _failure(stage: Stage, error: Exception, prefix: str, model: Path | None) -> Failure:
    """What a stage raised."""
    found = describe_stage_failure(stage, error, prefix=prefix, model=model)
    *_, innermost = cause_chain(error)
    return _at_node(found, ExceptionFact(type=qualified_name(type(innermost)), message=str(innermost)), prefix)


def _at_node(found: StageFailure, fact: ExceptionFact, prefix: str) -> Failure:
    """The failure with one frame: the line of the forward that the node came from."""
    frame = Frame(
        file=found.file or "<graph>",
        line=found.line,
        function=found.where or "forward",
        source=found.source,
        module=found.module or prefix,
        user=True,
    )
    op = OpFact(name=found.op, arguments=found.takes, raised=True) if found.op else None
    frames = (frame,) if found.node or found.file else ()
    return Failure(stage=found.stage, exceptions=(fact,), frames=frames, op=op)

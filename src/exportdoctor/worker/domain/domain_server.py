"""The process behind `exportdoctor domain`: exports a part or loads a program, and finds where it is right."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.domain import DomainRequest, DomainResult
from exportdoctor.core.protocol.export import SCRATCH, StageFailure
from exportdoctor.core.records.size_domain import SizeDomain
from exportdoctor.report.wording.scan import substitutions
from exportdoctor.shims import (
    ExportCall,
    Shim,
    apply_shims,
    call_for_part,
    export_program,
)
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import blame_running_code
from exportdoctor.targets.sizes.dynamic_shapes import is_dynamic
from exportdoctor.torch_internals.module_proxies import state_id
from exportdoctor.torch_internals.program_checks import input_shapes
from exportdoctor.torch_internals.trees import tree_unflatten
from exportdoctor.worker import environment
from exportdoctor.worker.describe.guard_origin import record_guards
from exportdoctor.worker.describe.own_fault import own_fault
from exportdoctor.worker.domain.part_search import make_search
from exportdoctor.worker.domain.size_axes import is_plain
from exportdoctor.worker.domain.size_trials import SAVED, TriedStage
from exportdoctor.worker.export.program_file import load_program, require_inputs, save_program
from exportdoctor.worker.numbers.rung import file_rung, program_rung
from exportdoctor.worker.one_request import Progress, open_part, serve_one_request
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.proof_inputs import input_sets
from exportdoctor.worker.prove.read_texts import watch_texts
from exportdoctor.worker.prove.repeated_eager import repeatable_sets
from exportdoctor.worker.translate.failed_node import describe_export_failure, describe_stage_failure
from exportdoctor.worker.translate.onnx_process import OnnxProcess
from exportdoctor.worker.translate.onnx_program import flat_inputs, needs_external_data, translate
from exportdoctor.worker.translate.onnx_session import OnnxSession

RUNTIME = "ONNX Runtime"


def find_domain(request: DomainRequest, doing: Progress) -> DomainResult:
    """The domain that a request asks for. Raises UsageError, TargetError, ShimTrouble."""
    with torch.no_grad(), tempfile.TemporaryDirectory(dir=os.environ.get(SCRATCH)) as folder:
        if request.target is None:
            return _of_file(Path(request.file), Path(folder), doing)
        opened = open_part(
            request.target, request.part, shims=request.shims, shim_files=request.shim_files, doing=doing
        )
        part, shims = opened.part, opened.shims
        doing("running eager")
        with blame_running_code(f"The eager forward of part {part.name} fails"):
            found = input_sets(part, opened.plan, seconds=request.seconds, doing=doing)
            sets, chance = repeatable_sets(part, found)
        with part.prepare():
            domain, *failures = _of_part(part, shims, sets, Path(folder), request.against, doing)
    notes = (*substitutions(opened.built.substitutions), *filter(None, (chance,)))
    domain = msgspec.structs.replace(domain, notes=(*domain.notes, *notes))
    return DomainResult(
        domain=domain,
        failure=failures[0] or failures[1],
        later_failure=failures[1] if failures[0] else None,
        target=request.target.ref,
        part=part.name,
        shims=request.shims,
        environment=environment.versions(),
    )


def _of_part(
    part: BuiltPart,
    shims: Sequence[Shim],
    sets: tuple[InputSet, ...],
    folder: Path,
    against: str,
    doing: Progress,
) -> tuple[SizeDomain, StageFailure | None, StageFailure | None]:
    """The domain, why the part does not export as declared, and why a later stage could not be made."""
    failure = None
    with watch_texts() as say_texts, apply_shims(shims, call_for_part(part)) as call:
        doing(f"exporting {part.name}")
        with record_guards() as log:
            try:
                program = export_program(call)
            except Exception as error:
                failure = describe_export_failure(error, _names(part))
                log.made.clear()
                try:
                    program = export_program(replace(call, dynamic_shapes=_relax(call.dynamic_shapes)))
                except Exception:  # nothing exports, not even with sizes left to torch: the first failure is told
                    return SizeDomain(), failure, None
                # sizes that are computed from others by their declaration are not tied now
                part = replace(part, axes={name: places for name, places in part.axes.items() if is_plain(name)})
        try:
            search = make_search(part, call, program, log)
        except Exception as error:  # as where torch cannot write the code of a program's guards
            if own_fault(error):
                raise
            return SizeDomain(), failure, describe_stage_failure("run", error, prefix=part.prefix)
        search.plan()
        others = [_given_stage(Path(against), program, call)] if against else []
        stages, trouble = _later_stages(program, call, folder, doing, part.prefix)
        search.stages = [*search.stages, *stages, *others]
    doing("trying sizes")
    search.ask_eager(sets[0])
    with apply_shims(shims, call_for_part(part)):
        found = search.finish([one for one in sets[1:] if len(one.calls) == 1])
    return msgspec.structs.replace(found, notes=(*found.notes, *filter(None, (say_texts(),)))), failure, trouble


def _names(part: BuiltPart) -> dict[int, str]:
    return {
        state_id(module): ".".join(filter(None, (part.prefix, path))) for path, module in part.module.named_modules()
    }


def _relax(shapes: Any) -> Any:
    """The dynamic shapes, every open size left to torch."""
    match shapes:
        case Mapping():
            return {key: _relax(one) for key, one in shapes.items()}
        case list() | tuple():
            return type(shapes)(_relax(one) for one in shapes)
    return torch.export.Dim.AUTO if is_dynamic(shapes) else shapes


def _later_stages(
    program: Any, call: ExportCall, folder: Path, doing: Progress, prefix: str
) -> tuple[list[TriedStage], StageFailure | None]:
    """The program from its file, and what ONNX Runtime makes of it, as far as they can be made."""
    found: list[TriedStage] = []
    try:
        doing("saving and loading the program")
        path = folder / "program.pt2"
        save_program(program, path)
        saved = load_program(path).module()

        def run(given: Inputs) -> Any:
            args, kwargs = call.convert(given)
            return saved(*args, **kwargs)

        found.append(TriedStage(name=SAVED, run=run, holder=saved))
    except Exception as error:
        return found, describe_stage_failure("load", error, prefix=prefix)
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return found, None
    try:
        doing("translating into ONNX")
        reader, file = copy.copy(program), folder / "program.onnx"
        made = translate(program).made
        made.save(str(file), external_data=needs_external_data(made))
        OnnxSession(file)  # raises where it cannot be loaded
        session = OnnxProcess(file)
    except Exception as error:
        return found, describe_stage_failure("translate", error, prefix=prefix)

    def run_file(given: Inputs) -> list[torch.Tensor]:
        return session.run(flat_inputs(reader, *call.convert(given)))

    found.append(TriedStage(name=RUNTIME, run=run_file))
    return found, None


def _given_stage(path: Path, program: Any, call: ExportCall) -> TriedStage:
    """A file that was made elsewhere. Raises UsageError where it is none."""
    reader, loaded = copy.copy(program), None
    try:
        if path.suffix == ".pt2":
            loaded = load_program(path)
            rung = program_rung(path.name, loaded, check_guards=True)
        else:
            rung = file_rung(path.name, path, reader, optimise=True, own_process=True)
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded: {type(error).__name__}: {first_line(error, 160)}") from error
    if loaded is not None:
        require_inputs(loaded, (call.args, call.kwargs), path)
    return TriedStage(name=path.name, run=lambda given: rung.run(call.convert(given)), holder=rung.holder)


def _of_file(path: Path, folder: Path, doing: Progress) -> DomainResult:
    """The domain of a program without its eager module."""
    doing(f"loading {path.name}")
    try:
        program = load_program(path)
        example = program.example_inputs or _make_inputs(program)
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded: {type(error).__name__}: {first_line(error)}") from error
    module = program.module()
    part = BuiltPart(
        name="", title=path.name, module=module, prefix="", args=example[0], kwargs=dict(example[1]),
        dynamic_shapes=None, prepare=nullcontext,
    )  # fmt: skip
    call = call_for_part(part)
    search = make_search(part, call, program, None, alone=True)
    search.plan()
    stages, failure = _later_stages(program, call, folder, doing, "")
    search.stages = [*search.stages, *[one for one in stages if one.name != SAVED]]
    doing("trying sizes")
    return DomainResult(domain=search.finish(), failure=failure, target=path.name, environment=environment.versions())


def _make_inputs(program: Any) -> Inputs:
    """Inputs of a program that keeps none: sizes that its ranges allow, random floats, whole numbers of zero."""
    generator = torch.Generator().manual_seed(0)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    ranges = {symbol: max(int(one.lower), 4) for symbol, one in program.range_constraints.items()}
    leaves: list[Any] = []
    for name, shape in zip(program.graph_signature.user_inputs, input_shapes(program), strict=True):
        value = values.get(name)
        if isinstance(value, torch.Tensor):
            sizes = [one if isinstance(one, int) else int(one.subs(ranges)) for one in shape]
            floats = value.dtype.is_floating_point
            made = torch.randn(sizes, generator=generator) if floats else torch.zeros(sizes)
            leaves.append(made.to(value.dtype))
        else:
            leaves.append(int(shape.subs(ranges)) if hasattr(shape, "subs") else name if value is None else value)
    made_inputs: Inputs = tree_unflatten(leaves, program.call_spec.in_spec)
    return made_inputs


if __name__ == "__main__":
    serve_one_request(DomainRequest, find_domain)

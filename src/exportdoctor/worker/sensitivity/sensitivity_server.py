"""The process behind `exportdoctor sensitivity`: makes the file of a part, and measures what its layers cost."""

from __future__ import annotations

import copy
import dataclasses
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.export import SCRATCH
from exportdoctor.core.protocol.sensitivity import (
    Lowering,
    SensitivityRequest,
    SensitivityResult,
)
from exportdoctor.core.versions import installed_versions
from exportdoctor.report.wording import sensitivities as wording
from exportdoctor.report.wording.formatting import count
from exportdoctor.shims import Shim, apply_shims, call_for_part, export_program
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.eager import blame_running_code, run_example, run_once
from exportdoctor.worker import environment
from exportdoctor.worker.one_request import Progress, open_part, serve_one_request
from exportdoctor.worker.prove.cure_inputs import drawer_for, redraw_values
from exportdoctor.worker.prove.input_set import InputSet, run_in_eager, says_nothing, sizes_of
from exportdoctor.worker.sensitivity.calibration import name_inputs, read_sets, unnamed_sets
from exportdoctor.worker.sensitivity.lowered_modules import CALL, float_outputs, lower_modules, quantise_copy
from exportdoctor.worker.sensitivity.lowered_program import lower_program, quantise_program
from exportdoctor.worker.sensitivity.measure import LARGEST, LowerableModel, Sensitivity, relative_error
from exportdoctor.worker.sensitivity.quantisers import (
    Feed,
    products_saturate,
    read_lowered,
    save_model,
    static_call,
    without_round_trips,
    write_lowered,
)
from exportdoctor.worker.sensitivity.short_floats import ShortFloats, as_array, widen_short_floats
from exportdoctor.worker.sensitivity.switched_model import load_graph, refuse_other_dtypes, switch_layers
from exportdoctor.worker.translate.onnx_program import flat_inputs, name_values, needs_external_data, translate

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_SETS = 12
"""Input sets that are made: a third each for calibration, search and proof."""


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """A file, in which every node has a name and floats of 16 bits are computed in float32, its input sets, and where
    it comes from. `program` is what it was made of."""

    path: Path
    short: ShortFloats
    feeds: Sequence[Feed]
    title: str
    part: str = ""
    prefix: str = ""
    notes: tuple[str, ...] = ()
    program: Any = None


def find_sensitivity(request: SensitivityRequest, doing: Progress) -> SensitivityResult:
    """What a request asks for. Raises UsageError, TargetError, ShimTrouble."""

    if request.engine != "onnxruntime":
        return _find_in_torch(request, doing)
    with torch.no_grad(), tempfile.TemporaryDirectory(dir=os.environ.get(SCRATCH)) as folder:
        room = Path(folder)
        subject = _of_target(request, room, doing) if request.target is not None else _of_file(request, room)
        plain = subject.path
        calibration, search, proof = _split(subject.feeds)
        already = [name for name, dtype in subject.short.given.items() if dtype == _DTYPES.get(request.to)]
        doing(f"asking the quantiser for {request.to}")
        try:
            values = read_lowered(plain, request.to, calibration, room)
        except Exception as error:
            refuse_other_dtypes(load_graph(plain), request.to, already)
            raise TargetError(f"The quantiser fails: {type(error).__name__}: {first_line(error)}") from error
        switched = switch_layers(
            load_graph(plain),
            request.to,
            values,
            room,
            prefix=subject.prefix,
            program=subject.program,
            already=already,
        )
        found = _measure(request, switched, search, proof, doing)
        outputs = switched.outputs
        del switched  # its weights, and lowered ones: the two files that are compared now have theirs
        made, note = _run_made(plain, request.to, calibration, proof, found.kept_nodes, room, outputs)
        return msgspec.structs.replace(
            found,
            target=subject.title,
            part=subject.part,
            made=made,
            sets=(len(calibration), len(search), len(proof)),
            notes=(
                *subject.notes,
                *filter(None, [static_call(plain, request.to), note]),
                *_processor_notes(request.to, made),
                *wording.folded_modules(found.layers),
            ),
        )


def _write_plain(path: Path, folder: Path) -> tuple[Path, ShortFloats]:
    """The file that is measured. Raises UsageError where it is none, and where it has floats of 16 bits and does not
    load in ONNX Runtime."""
    import onnxruntime as ort

    model = load_graph(path)
    short = widen_short_floats(model)
    plain = folder / "plain.onnx"
    save_model(model, plain)
    del model
    if short.dtypes:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        try:
            ort.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error, 160)}"
            raise UsageError(wording.short_not_loaded(_names(short), why), hint=wording.IN_FLOAT32_HINT) from error
    return plain, short


def _names(short: ShortFloats) -> list[str]:
    return [str(one).removeprefix("torch.") for one in short.dtypes]


def _notes(request: SensitivityRequest, short: ShortFloats) -> tuple[str, ...]:
    """What to say of input sets that were made, and of floats of 16 bits."""
    made = () if request.calibration else (wording.MADE_SETS,)
    return (*made, wording.computed_in_float32(_names(short), request.to)) if short.given else made


def _measure(
    request: SensitivityRequest,
    model: LowerableModel,
    search: Sequence[Feed],
    proof: Sequence[Feed],
    doing: Progress,
) -> SensitivityResult:
    """The ranking of a model's layers, and the set to keep, proved on other inputs. Raises UsageError where no output
    has floating-point numbers."""
    if not model.outputs:
        raise UsageError(wording.NO_FLOATS, hint=wording.NO_FLOATS_HINT)
    measured = Sensitivity(model=model, feeds=search, doing=doing)
    ranking = measured.costs()
    kept, asked = measured.smallest_set(ranking, request.budget, request.questions)
    doing("proving the set on other inputs")
    lowered = [name for name in measured.names if name not in kept]
    return SensitivityResult(
        to=request.to,
        target="",
        shims=request.shims,
        layers=tuple(ranking),
        kept=kept,
        kept_nodes=tuple(node for one in ranking if one.name in kept for node in one.nodes),
        budget=request.budget,
        whole=measured.error(measured.names),
        searched=measured.error(lowered),
        proved=Sensitivity(model=model, feeds=proof, doing=doing).error(lowered),
        summed=measured.count_by_sum(ranking, request.budget),
        questions=asked,
        pairs=tuple(measured.pairs(ranking)),
        environment=environment.versions() | installed_versions(["torchao"] if request.engine != "onnxruntime" else []),
        engine=request.engine,
    )


def _find_in_torch(request: SensitivityRequest, doing: Progress) -> SensitivityResult:
    """The same where torchao lowers a part's linear layers in eager, or its program by PT2E. A program is the check."""
    assert request.target is not None
    opened = open_part(request.target, request.part, shims=request.shims, shim_files=request.shim_files, doing=doing)
    part = opened.part
    with torch.no_grad(), part.prepare():
        doing("running eager")
        with blame_running_code(f"The eager forward of part {part.name} fails"):
            given = _sets_of_part(part, request.calibration)
        find = _lower_modules if request.engine == "torchao" else _lower_program
        found = find(request, part, opened.shims, given, doing)
        return msgspec.structs.replace(
            found,
            target=request.target.ref,
            part=part.name,
            notes=(*(() if request.calibration else (wording.MADE_SETS,)), *found.notes),
        )


def _lower_modules(
    request: SensitivityRequest, part: BuiltPart, shims: Sequence[Shim], given: Sequence[Any], doing: Progress
) -> SensitivityResult:
    _, search, proof = _split([{CALL: one} for one in given])
    doing(f"asking torchao for {request.to}")
    model = lower_modules(part.module, request.to, given[0])
    found = _measure(request, model, search, proof, doing)
    doing("exporting what torchao makes")

    def make() -> Callable[[Any], Any]:
        quantised = quantise_copy(part.module, request.to, [name for name in model.forms if name not in found.kept])
        with apply_shims(shims, dataclasses.replace(call_for_part(part), module=quantised)) as call:
            program = export_program(call).module()
        return lambda inputs: run_once(program, call.convert(copy.deepcopy(inputs)))

    made, note = _run_made_program(make, model, proof)
    names = {one.name: ".".join(filter(None, (part.prefix, one.name))) for one in found.layers}
    return msgspec.structs.replace(
        found,
        layers=tuple(msgspec.structs.replace(one, name=names[one.name]) for one in found.layers),
        kept=tuple(names[one] for one in found.kept),
        pairs=tuple(
            msgspec.structs.replace(one, first=names[one.first], second=names[one.second]) for one in found.pairs
        ),
        made=made,
        sets=(0, len(search), len(proof)),
        notes=(*map(wording.refused_layer, model.refused), *filter(None, [note])),
    )


def _lower_program(
    request: SensitivityRequest, part: BuiltPart, shims: Sequence[Shim], given: Sequence[Any], doing: Progress
) -> SensitivityResult:
    """Names are those of the part's program, by which PT2E's quantisers are told what to leave out."""
    doing(f"exporting {part.name}")
    try:
        with apply_shims(shims, call_for_part(part)) as call:
            program = export_program(call)
    except Exception as error:
        raise TargetError(
            f"Part {part.name} does not export: {type(error).__name__}: {first_line(error)}",
            hint=f"exportdoctor scan {request.target.ref if request.target else ''} --part {part.name} says why",
        ) from error
    calibration, search, proof = _split([{CALL: call.convert(copy.deepcopy(one))} for one in given])
    doing(f"asking PT2E for {request.to}")
    model = lower_program(program, request.to, calibration)
    found = _measure(request, model, search, proof, doing)
    doing("quantising with this list")

    def make() -> Callable[[Any], Any]:
        quantised = quantise_program(program, request.to, calibration, found.kept)
        return lambda inputs: run_once(quantised, inputs)

    made, note = _run_made_program(make, model, proof)
    return msgspec.structs.replace(
        found,
        made=made,
        sets=(len(calibration), len(search), len(proof)),
        notes=tuple(filter(None, [wording.nodes_left(model.left), note])),
    )


def _run_made_program(
    make: Callable[[], Callable[[Any], Any]], model: LowerableModel, proof: Sequence[Feed]
) -> tuple[float, str]:
    """The outputs' error of the program that the quantiser itself makes with a list; -1 with a note for none."""
    try:
        run, found = make(), 0.0
        for feed in proof:
            answers = float_outputs(run(feed[CALL])).values()
            pairs = zip((one.float().numpy() for one in answers), model.run(feed, ()), strict=True)
            found = max(found, *(relative_error(one, other) for one, other in pairs))
    except Exception as error:
        return -1.0, wording.program_not_made(f"{type(error).__name__}: {first_line(error, 200)}")
    return min(found, LARGEST), ""


def _split(feeds: Sequence[Feed]) -> tuple[Sequence[Feed], Sequence[Feed], Sequence[Feed]]:
    """For calibration, search and proof: every third one."""
    if len(feeds) < 3:
        raise UsageError(
            f"{count(len(feeds), 'input set')} cannot be enough: calibration, search and proof need one each",
            hint="Give more with --calibration",
        )
    return feeds[0::3], feeds[1::3], feeds[2::3]


def _run_made(
    plain: Path,
    to: Lowering,
    calibration: Sequence[Feed],
    proof: Sequence[Feed],
    kept: Sequence[str],
    folder: Path,
    outputs: Sequence[str],
) -> tuple[float, str]:
    """The outputs' error of the file that the quantiser itself makes with this list; -1 with a note for none. Where it
    makes float16 of what passes between nodes to keep, the note says what that costs."""
    path, note = folder / "made.onnx", ""
    try:
        if not write_lowered(plain, to, calibration, path, exclude=kept):
            return -1.0, wording.NO_QUANTISER
        found = _error_of_file(path, plain, proof, outputs)
        apart = folder / "kept_apart.onnx"
        if to == "fp16" and kept and (number := without_round_trips(path, apart)):
            note = wording.round_trips(number, _error_of_file(apart, plain, proof, outputs))
    except Exception as error:
        return -1.0, wording.not_made(f"{type(error).__name__}: {first_line(error, 200)}")
    return found, note


def _error_of_file(path: Path, plain: Path, proof: Sequence[Feed], outputs: Sequence[str]) -> float:
    """How far the outputs of a file are from those of the plain one."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    exact, lowered = (
        ort.InferenceSession(str(one), options, providers=["CPUExecutionProvider"]) for one in (plain, path)
    )
    found = 0.0
    for feed in proof:
        pairs = zip(lowered.run(list(outputs), dict(feed)), exact.run(list(outputs), dict(feed)), strict=True)
        found = max(found, *(relative_error(one, other) for one, other in pairs))
    return min(found, LARGEST)


def _processor_notes(to: Lowering, made: float) -> tuple[str, ...]:
    """What the processor adds to the error of the quantiser's own file, where that was run."""
    return (wording.SATURATES,) if made >= 0 and products_saturate(to) else ()


def _of_target(request: SensitivityRequest, folder: Path, doing: Progress) -> _Subject:
    """The part's file as torch.onnx translates it, and sets that eager takes."""
    assert request.target is not None
    opened = open_part(request.target, request.part, shims=request.shims, shim_files=request.shim_files, doing=doing)
    part, shims = opened.part, opened.shims
    with part.prepare():
        doing("running eager")
        with blame_running_code(f"The eager forward of part {part.name} fails"):
            given = _sets_of_part(part, request.calibration)
        with apply_shims(shims, call_for_part(part)) as call:
            doing(f"exporting {part.name}")
            try:
                program = export_program(call)
                reader, path = copy.copy(program), folder / "part.onnx"
                made = translate(program).made
            except Exception as error:
                raise TargetError(
                    f"Part {part.name} does not reach ONNX: {type(error).__name__}: {first_line(error)}",
                    hint=f"exportdoctor scan {request.target.ref} --part {part.name} --to onnx says why",
                ) from error
            name_values(made, reader, part.axes)
            made.save(str(path), external_data=needs_external_data(made))
            names = [value.name for value in made.model.graph.inputs]
            feeds = [
                dict(zip(names, map(as_array, leaves), strict=True))
                for leaves in (flat_inputs(reader, *call.convert(inputs)) for inputs in given)
            ]
    plain, short = _write_plain(path, folder)
    return _Subject(
        path=plain,
        short=short,
        feeds=feeds,
        title=request.target.ref,
        part=part.name,
        prefix=part.prefix,
        notes=_notes(request, short),
        program=made.exported_program,
    )


def _sets_of_part(part: BuiltPart, calibration: str) -> list[Any]:
    """Inputs of a part: those of a file, or the example with other values, other numbers, and sizes that are known."""
    example = (part.args, part.kwargs)
    if calibration:
        return [name_inputs(part, one, calibration) for one in read_sets(calibration)]
    results = run_example(part.module, part.name, example)
    if says_nothing(results[0].output):
        raise TargetError("Eager gives nothing but NaN for the example")
    first = InputSet(title=sizes_of(example), kind="example", calls=(example,), results=results)
    found = [example]
    found += [one for seed in range(_SETS) if (one := redraw_values(example, seed=seed)) is not None]
    if len(found) < 3:
        drawer = drawer_for(call_for_part(part), first)
        drawn = [one for one in drawer.draw() if one.kind in ("whole_numbers", "rows", "values")]
        found += [one.inputs for one in drawn]
    return [one for one in [*found, *part.more_inputs][: _SETS + 1] if run_in_eager(part.module, [one]) is not None]


def _of_file(request: SensitivityRequest, folder: Path) -> _Subject:
    import onnx

    path = Path(request.file)
    plain, short = _write_plain(path, folder)
    given = unnamed_sets(plain, request.calibration, _SETS)
    notes = _notes(request, short)
    graph = onnx.load(str(path), load_external_data=False).graph
    if unnamed := sum(not node.name for node in graph.node):
        notes = (*notes, wording.unnamed_nodes(unnamed))
    return _Subject(path=plain, short=short, feeds=given, title=path.name, notes=notes)


if __name__ == "__main__":
    serve_one_request(SensitivityRequest, find_sensitivity)

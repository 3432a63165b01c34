"""Exports one part to a file, loads it again and runs it; a failure of any stage has the node and line it came from.

Eager ran before the shims were applied; the files run while they hold, for a program that takes a registered cache
needs the registration.
"""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import FIRST_TO_DIFFER, first_line
from exportdoctor.core.protocol.export import ExportedFile, ExportRequest, PrecisionLoss, StageFailure
from exportdoctor.core.records.outcome import Agreement, Stage
from exportdoctor.core.records.size_domain import SizeDomain
from exportdoctor.report.wording import capture as wording
from exportdoctor.report.wording.export import try_shim
from exportdoctor.shims import ExportCall, Inputs, Shim, apply_shims, call_for_part, export_program, registry
from exportdoctor.shims.cure_pattern import FailureView
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.eager import CallResult, copy_inputs, run_calls
from exportdoctor.torch_internals.module_proxies import state_id
from exportdoctor.torch_internals.pytree_registry import inputs_in_traced_order
from exportdoctor.worker.describe.guard_origin import record_guards
from exportdoctor.worker.domain.part_search import make_search
from exportdoctor.worker.domain.size_trials import SAVED, DomainSearch, TriedStage
from exportdoctor.worker.export.load_cost import LoadCost, measure_load
from exportdoctor.worker.export.program_file import classes_of, load_program, modules_of_classes, save_program
from exportdoctor.worker.prove.compare_calls import compare_calls
from exportdoctor.worker.prove.compare_outputs import failed_run
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.python_extremes import note_extremes
from exportdoctor.worker.prove.recorded_gradients import fails_with_gradients
from exportdoctor.worker.prove.rounding import leave_out_rounding, widen_to_rounding
from exportdoctor.worker.prove.tied_choices import excuse_ties
from exportdoctor.worker.translate.failed_node import describe_export_failure, describe_stage_failure
from exportdoctor.worker.translate.onnx_bisect import find_smallest_submodule
from exportdoctor.worker.translate.onnx_first_difference import first_difference
from exportdoctor.worker.translate.onnx_process import OnnxProcess
from exportdoctor.worker.translate.onnx_program import (
    check_model,
    convert_opset,
    flat_inputs,
    name_values,
    opset_for_dtypes,
    save_model,
    translate,
)
from exportdoctor.worker.translate.onnx_session import OnnxSession, runtime_package
from exportdoctor.worker.translate.onnx_split import split_and_merge
from exportdoctor.worker.translate.precision import losses_of
from exportdoctor.worker.translate.runtime_limits import rounded_fractions, runtime_limits
from exportdoctor.worker.translate.widened_file import widen_file

_SECONDS_OF_SIZES = 20.0
"""For eager on both sides of each boundary, and as much for the files."""

RunProgram = Callable[[tuple[Any, ...], dict[str, Any]], list[torch.Tensor]]
"""A loaded program: takes its own inputs, gives the tensors of its output."""


@dataclass
class PartExport:
    """The result of one part's export. `runs` maps labels to loaded programs; empty if a stage failed.

    `loaded` holds the buffers that a program keeps from call to call; empty for one that keeps nothing. `search` has
    the sizes that remain to be tried; None where a stage failed, or nothing is known of sizes.
    """

    files: list[ExportedFile] = field(default_factory=list)
    numbers: list[Agreement] = field(default_factory=list)
    trouble: StageFailure | None = None
    notes: list[str] = field(default_factory=list)
    unchecked: tuple[str, ...] = ()
    runs: dict[str, RunProgram] = field(default_factory=dict)
    loaded: torch.nn.Module = field(default_factory=torch.nn.Module)
    opset: int = 0
    losses: tuple[PrecisionLoss, ...] = ()
    imports: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    sets: frozenset[str] = frozenset()
    facts: dict[str, str] = field(default_factory=dict)
    domain: SizeDomain | None = None
    search: DomainSearch | None = None
    convert: Callable[[Inputs], Inputs] = field(default=lambda inputs: inputs)


@dataclass(frozen=True, kw_only=True)
class PartJob:
    """What to make of which part, and where. `stem` is the file's name without its suffix."""

    request: ExportRequest
    part: BuiltPart
    shims: Sequence[Shim]
    sets: Sequence[InputSet]
    stem: str
    doing: Callable[[str], None]
    device: str
    find_losses: bool = False

    @property
    def folder(self) -> Path:
        """Where files are written."""
        return Path(self.request.folder)


_Compared = tuple[InputSet, Agreement, RunProgram]


class StageStopped(Exception):
    """A stage failed; `found` says which and where."""

    def __init__(self, found: StageFailure) -> None:
        super().__init__(found.message)
        self.found = found


def export_part_files(job: PartJob) -> PartExport:
    """Export, write, load, run and compare. Raises NotApplicable, ShimTrouble, and OSError where the disk is full."""
    with torch.no_grad(), job.part.prepare():
        with apply_shims(job.shims, call_for_part(job.part)) as call:
            made, compared = _export_under_shims(job, call)
        if compared:
            _judge(job, made, compared)
    return made


def try_sizes(job: PartJob, made: PartExport) -> None:
    """Try the sizes that were planned while the files were made, and note the domain. Raises ShimTrouble."""
    assert made.search is not None
    with torch.no_grad(), job.part.prepare(), _no_harm(made):
        made.search.ask_eager(job.sets[0])
        with apply_shims(job.shims, call_for_part(job.part)):
            made.domain = made.search.finish()


@contextmanager
def _no_harm(made: PartExport) -> Iterator[None]:
    """A failure to find the sizes is a note: the files are as good as they were."""
    try:
        yield
    except Exception as error:
        made.notes.append(wording.sizes_not_tried(f"{type(error).__name__}: {first_line(error, 160)}"))


def _export_under_shims(job: PartJob, call: ExportCall) -> tuple[PartExport, list[_Compared]]:
    """The files, with the sizes that remain to be tried, and how they compare with eager."""
    made = PartExport()
    search: DomainSearch | None = None
    compared: list[_Compared] = []
    try:
        job.doing(f"exporting {job.part.name}")
        made.convert, made.sets, made.facts = call.convert, call.sets, call.all_facts
        with record_guards() as log:
            program = _export(job, call)
        made.notes += filter(None, [note_extremes(program), *call.notes])
        with _no_harm(made):
            planned = make_search(job.part, call, program, log)
            planned.seconds = _SECONDS_OF_SIZES
            planned.plan()
            search = planned
        if job.request.to == "pt2":
            _as_program(job, made, call, program)
        else:
            _as_onnx(job, made, call, program)
        job.doing(f"comparing with eager on {len(job.sets)} input sets")
        compared = list(_compare(job, made, call))
        if job.shims and job.request.to == "pt2":
            graded = fails_with_gradients(job.part.module, made.loaded, call.convert, job.sets[0])
            made.notes += [graded] if graded else []
        if job.find_losses:
            job.doing("looking for where precision is lost")
            made.losses = losses_of(program, inputs_in_traced_order(program, call.args, call.kwargs))
        if search is not None:
            label, run = next(iter(made.runs.items()))
            name = SAVED if job.request.to == "pt2" else label
            last = TriedStage(name=name, run=lambda inputs: run(*call.convert(inputs)), holder=made.loaded)
            search.stages = [*search.stages, last]
    except StageStopped as failure:
        made.trouble = failure.found
    if made.trouble is None:
        made.search = search
    return made, compared


def _export(job: PartJob, call: ExportCall) -> Any:
    try:
        return export_program(call)
    except Exception as error:
        names = {state_id(module): _join(job.part.prefix, path) for path, module in job.part.module.named_modules()}
        raise StageStopped(describe_export_failure(error, names)) from error


def _as_program(job: PartJob, made: PartExport, call: ExportCall, program: Any) -> None:
    path = job.folder / f"{job.stem}.pt2"
    job.doing("saving and loading the program")
    made.imports, made.classes = modules_of_classes(program), classes_of(program)
    try:
        save_program(program, path)
        with measure_load() as cost:
            made.loaded = loaded = load_program(path).module()
            cost.note_loaded()
            with suppress(Exception):  # the comparison tells it
                run_calls(loaded, [(call.args, call.kwargs)])
    except OSError:
        raise
    except Exception as error:
        if _is_disk(error):
            _KEPT.append(error)
            raise OSError(errno.ENOSPC, "the disk is full, or the file larger than allowed") from error
        raise StageStopped(describe_stage_failure("load", error, prefix=job.part.prefix)) from error
    size, nodes = path.stat().st_size, len(program.graph.nodes)
    file = ExportedFile(name=path.name, bytes=size, nodes=nodes, what=job.part.name)
    made.files.append(_with_cost(file, cost))
    made.runs["torch"] = lambda args, kwargs: loaded(*args, **kwargs)


def _with_cost(file: ExportedFile, cost: LoadCost) -> ExportedFile:
    return msgspec.structs.replace(file, load_seconds=round(cost.load_seconds, 3), peak_mib=round(cost.peak_mib, 1))


_KEPT: list[Exception] = []
"""torch's archive writer (2.13) aborts the process when it is destroyed before it could finish its file; what its
failure's traceback holds is kept until the process leaves without destroying anything."""


def _as_onnx(job: PartJob, made: PartExport, call: ExportCall, program: Any) -> None:
    path, request = job.folder / f"{job.stem}.onnx", job.request
    example = (call.args, call.kwargs)
    made.notes += rounded_fractions(program)
    reader = copy.copy(program)  # its graph is changed by the translation, what it takes is not
    at: Stage = "translate"
    try:
        job.doing("translating into ONNX")
        translated = translate(program, opset=request.opset)
        needed = opset_for_dtypes(translated.made.model)
        if not request.opset and needed > translated.made.model.opset_imports.get("", 0):
            made.notes.append(wording.opset_of_dtype(needed))
            translated = replace(translate(program, opset=needed), dropped=translated.dropped)
        name_values(translated.made, reader, job.part.axes)
        made.opset = int(translated.made.model.opset_imports.get("", 0))
        made.files.append(save_model(translated.made, path, external_data=request.external_data))
        if request.opset and made.opset != request.opset:
            made.files[-1], why = convert_opset(path, request.opset, made.files[-1])
            if why:
                made.notes.append(wording.other_opset(request.opset, made.opset, why))
            else:
                made.opset = request.opset
        at = "check"
        check_model(path)
        at = "load"
        job.doing("loading it in ONNX Runtime")
        with measure_load() as cost:
            session = _load(job, made, path)
            cost.note_loaded()
            at = "run"
            session.run(flat_inputs(reader, *copy_inputs(example)))
        if session.file == path:
            made.files[-1] = _with_cost(made.files[-1], cost)
    except OSError:
        raise
    except Exception as error:
        found = _plainer(at, error, path, reader, example, job)
        job.doing(f"{at} fails; looking for the submodule")
        found = find_smallest_submodule(found, call, prefix=job.part.prefix, opset=request.opset, doing=job.doing)
        raise StageStopped(found) from error
    if job.device == "cpu":
        made.notes += runtime_limits(translated.made.model)
    made.unchecked = translated.dropped
    runner = OnnxProcess(session.file) if job.device == "cpu" and session.file is not None else session
    made.runs["ONNX Runtime"] = lambda args, kwargs: runner.run(flat_inputs(reader, args, kwargs))
    if request.split > 1:
        _add_split(job, made, path, reader)


def _load(job: PartJob, made: PartExport, path: Path) -> OnnxSession:
    """The file's session; where this processor lacks operators in 16 bits, that of a form without them."""
    try:
        session = OnnxSession(path, device=job.device)
        if job.device != "cpu":
            made.notes.append(wording.loaded_providers(runtime_package(), session.providers))
        return session
    except Exception as error:
        if job.device != "cpu" or job.request.split > 1 or "NOT_IMPLEMENTED" not in str(error):
            raise
        wide = path.with_name(f"{path.stem}.wide.onnx")
        if not (operators := widen_file(path, wide)):
            raise
        session = OnnxSession(wide, device=job.device)
        made.notes.append(wording.lacking_kernels(operators))
        return session


def _add_split(job: PartJob, made: PartExport, path: Path, program: Any) -> None:
    """Cut the file, and note the pieces and how they run one after the other and merged again."""
    count = job.request.split
    job.doing(f"splitting it into {count} files")
    found = split_and_merge(path, count, device=job.device, external_data=job.request.external_data)
    made.files += found.files
    made.runs[f"{len(found.files)} files"] = lambda *inputs: found.run_pieces(flat_inputs(program, *inputs))
    made.runs["merged again"] = lambda *inputs: found.run_merged(flat_inputs(program, *inputs))


def _plainer(at: Stage, error: Exception, path: Path, program: Any, example: Any, job: PartJob) -> StageFailure:
    """The failure without ONNX Runtime's optimisations, which fuse nodes and rename them."""
    if at not in ("load", "run"):
        return describe_stage_failure(at, error, prefix=job.part.prefix, model=path)
    stage: Stage = "load"
    try:
        session = OnnxSession(path, device=job.device, optimise=False)
        stage = "run"
        session.run(flat_inputs(program, *copy_inputs(example)))
    except Exception as plain:
        if stage == at:
            return describe_stage_failure(at, plain, prefix=job.part.prefix, model=path)
    return describe_stage_failure(at, error, prefix=job.part.prefix, model=path)


def _compare(job: PartJob, made: PartExport, call: ExportCall) -> Iterator[_Compared]:
    for name, run in made.runs.items():
        for one in job.sets:
            if one.made_up and name != next(iter(made.runs)):
                continue  # pieces of the same file: the known sets show that they were put together rightly
            row = _row(made, run, call, one)
            if len(made.runs) > 1:
                row = msgspec.structs.replace(row, inputs=f"{row.inputs}, {name}")
            yield one, row, run


def _shims_for(trouble: StageFailure, tried: Sequence[Shim]) -> list[str]:
    """The exact shims that may help where a file's values begin to differ at this operator."""
    seen = FailureView(kind=FailureKind.NUMBERS, messages=(f"{FIRST_TO_DIFFER}{trouble.op}: ",))
    fitting = (shim for shim in registry() if shim.soundness == "exact" and shim.may_cure(seen))
    return [shim.id for shim in fitting if shim not in tried]


def _judge(job: PartJob, made: PartExport, compared: Sequence[_Compared]) -> None:
    """Note the comparisons, and where the file first differs. Call it while no shim is active."""
    asked = [one for one, _, _ in compared]
    plain = [_excuse_ties(job, made, *one) for one in compared]
    sets, rows, said = leave_out_rounding(job.part.module, asked, widen_to_rounding(job.part.module, asked, plain))
    found = list(zip(sets, rows, strict=True))
    made.numbers += rows
    if said:
        made.notes.append(said)
    wrong = next((one for one, row in found if not row.holds and not row.trouble), None)
    if wrong is not None and job.request.to == "onnx":
        job.doing("looking for the first value that differs")
        with apply_shims(job.shims, call_for_part(job.part)) as call:
            made.trouble = first_difference(call, wrong, opset=job.request.opset, prefix=job.part.prefix)
        if made.trouble is not None:
            made.search = None
            made.notes += [try_shim(name, made.trouble.op) for name in _shims_for(made.trouble, job.shims)]
    if made.search is not None:
        by_set = [(one, [row for each, row in found if each is one]) for one in job.sets]
        right = (one for one, its in by_set if its and all(row.holds and not row.refused for row in its))
        made.search.right = [one.inputs for one in right]


def _excuse_ties(job: PartJob, made: PartExport, one: InputSet, row: Agreement, run: RunProgram) -> Agreement:
    """The row, which agrees where the file differs in its choice among equal values alone."""

    def answers(asked: InputSet) -> Sequence[CallResult]:
        with apply_shims(job.shims, call_for_part(job.part)) as call:
            return run_calls(made.loaded, asked.calls, how=lambda inputs: run(*call.convert(inputs)))

    def compare(asked: InputSet) -> Agreement:
        with apply_shims(job.shims, call_for_part(job.part)) as call:
            return _row(made, run, call, asked)

    return excuse_ties(job.part.module, [one], [row], compare, answers)[0]


def _row(made: PartExport, run: RunProgram, call: ExportCall, one: InputSet) -> Agreement:
    try:
        answers = run_calls(made.loaded, one.calls, how=lambda inputs: run(*call.convert(inputs)))
    except Exception as error:
        row = failed_run(one.title, error)
        return msgspec.structs.replace(row, refused=True, made_up=one.made_up, kind=one.kind)
    return compare_calls(one, answers, tensors=True)


def _is_disk(error: Exception) -> bool:
    text = str(error)
    return any(words in text for words in _DISK_WORDS)


_DISK_WORDS = ("No space left", "failed writing file", "File too large", "unexpected pos", "iostream error")
"""Messages of torch's archive writer on a full disk; most often it only reports an unexpected position."""


def _join(prefix: str, path: str) -> str:
    return ".".join(filter(None, (prefix, path)))

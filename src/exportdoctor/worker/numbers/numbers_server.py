"""The process behind `exportdoctor numbers`: makes the stages of a part one after the other, and compares them."""

from __future__ import annotations

import copy
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.kinds import NUMBERS_DIFFER
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.export import SCRATCH, StageFailure
from exportdoctor.core.protocol.numbers_ladder import (
    LadderRequest,
    LadderResult,
    LadderStage,
    LadderVerdict,
)
from exportdoctor.report.wording import ladder as wording
from exportdoctor.report.wording.export import unrunnable_program
from exportdoctor.report.wording.scan import substitutions
from exportdoctor.shims import apply_shims, call_for_part, export_program
from exportdoctor.shims.own.keyword_names import keyword_names
from exportdoctor.targets.eager import blame_running_code
from exportdoctor.torch_internals.module_proxies import state_id
from exportdoctor.worker import environment
from exportdoctor.worker.export.program_file import load_program, require_inputs
from exportdoctor.worker.numbers.comparer import Comparer
from exportdoctor.worker.numbers.rung import Rung, file_rung, has_names_of, has_scopes, program_rung
from exportdoctor.worker.one_request import Progress, open_part, serve_one_request
from exportdoctor.worker.prove.empty_constants import find_empty_constant
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.proof_inputs import input_sets
from exportdoctor.worker.prove.repeated_eager import repeatable_sets
from exportdoctor.worker.prove.tied_choices import is_tied
from exportdoctor.worker.translate.failed_node import (
    describe_empty_constant,
    describe_export_failure,
    describe_stage_failure,
    fx_fact,
    with_node,
)
from exportdoctor.worker.translate.onnx_program import translate

_PLAIN = "ONNX"
"""The stage of a file as torch.onnx makes it, before its optimizer."""


@dataclass(kw_only=True)
class _Ladder:
    """The stages so far. `last` is the newest one that runs, None for eager."""

    comparer: Comparer
    stages: list[LadderStage] = field(default_factory=list)
    last: Rung | None = None

    def add(self, rung: Rung, note: str = "") -> None:
        """Compare a stage with the one before."""
        stage = self.comparer.stage(self.last, rung)
        self.stages.append(msgspec.structs.replace(stage, notes=(note, *stage.notes)) if note else stage)
        self.last = rung

    def fail(self, name: str, failure: StageFailure) -> None:
        """Note a stage that could not be made."""
        before = self.last.name if self.last is not None else "eager"
        self.stages.append(LadderStage(name=name, before=before, failure=failure))


def climb(request: LadderRequest, doing: Progress) -> LadderResult:
    """The ladder of a request. Raises UsageError, TargetError, ShimTrouble."""
    opened = open_part(request.target, request.part, shims=request.shims, shim_files=request.shim_files, doing=doing)
    part, shims = opened.part, opened.shims
    doing("running eager")
    with blame_running_code(f"The eager forward of part {part.name} fails"):
        made = _with_own_titles(input_sets(part, opened.plan, seconds=request.seconds, doing=doing))
        sets, chance = repeatable_sets(part, made)
    with (
        torch.no_grad(),
        part.prepare(),
        tempfile.TemporaryDirectory(dir=os.environ.get(SCRATCH)) as folder,
        apply_shims(shims, call_for_part(part)) as call,
    ):
        ladder = _Ladder(comparer=Comparer(part=part, call=call, sets=sets, doing=doing))
        program = None if request.against.endswith(".pt2") else _add_program(ladder, call, part, doing)
        if request.against:
            _add_file(ladder, Path(request.against), program, Path(folder))
        elif program is not None:
            _add_onnx(ladder, program, request, Path(folder), doing)
    return LadderResult(
        verdict=_verdict(ladder.stages),
        stages=tuple(ladder.stages),
        target=request.target.ref,
        part=part.name,
        weights=opened.built.weights,
        dtype=opened.built.dtype,
        shims=request.shims,
        environment=environment.versions(),
        notes=(*substitutions(opened.built.substitutions), *filter(None, (chance,))),
    )


def _with_own_titles(sets: Sequence[InputSet]) -> list[InputSet]:
    """The sets, numbered where their titles are equal."""
    counts = Counter[str]()
    found = []
    for one in sets:
        counts[one.title] += 1
        number = counts[one.title]
        found.append(replace(one, title=f"{one.title} #{number}") if number > 1 else one)
    return found


def _add_program(ladder: _Ladder, call: Any, part: Any, doing: Progress) -> Any:
    """The exported program, None where torch.export fails."""
    doing(f"exporting {part.name}")
    try:
        program = export_program(call)
    except Exception as error:
        names = {
            state_id(module): ".".join(filter(None, (part.prefix, path)))
            for path, module in part.module.named_modules()
        }
        ladder.fail("exported program", describe_export_failure(error, names))
        return None
    if (empty := find_empty_constant(program)) is not None:
        failure = StageFailure(stage="run", exception=NUMBERS_DIFFER, message=describe_empty_constant(empty))
        fact = fx_fact(empty.node) if empty.node is not None else None
        ladder.fail("exported program", with_node(failure, fact, part.prefix))
        return None
    try:
        rung = program_rung("exported program", program)
    except Exception as error:
        message = unrunnable_program(error, keyword_names(program))
        ladder.fail("exported program", StageFailure(stage="run", exception=NUMBERS_DIFFER, message=message))
        return None
    ladder.add(rung)
    return program


def _add_onnx(ladder: _Ladder, program: Any, request: LadderRequest, folder: Path, doing: Progress) -> None:
    """Decomposed as torch.onnx decomposes it, the file as translated, as optimised, and as ONNX Runtime runs it."""
    prefix, reader = ladder.comparer.part.prefix, copy.copy(program)
    doing("translating into ONNX")
    try:
        made = translate(program, opset=request.opset, optimise=False).made
    except Exception as error:
        failure = describe_stage_failure("translate", error, prefix=prefix)
        try:
            decomposed = program.run_decompositions()
        except Exception as other:
            ladder.fail("decomposed", describe_stage_failure("decompose", other, prefix=prefix))
        else:
            ladder.add(program_rung("decomposed", decomposed))
        ladder.fail("ONNX", failure)
        return
    ladder.add(program_rung("decomposed", made.exported_program))
    plain, better, final = folder / "plain.onnx", folder / "optimised.onnx", folder / "runtime.onnx"
    made.save(str(plain), external_data=True)
    steps: list[tuple[str, Callable[[], Rung]]] = [
        (_PLAIN, lambda: file_rung(_PLAIN, plain, reader, optimise=False)),
        ("ONNX optimised", lambda: _optimise(made, better, reader)),
        ("ONNX Runtime", lambda: file_rung("ONNX Runtime", final, reader, optimise=True, given=better)),
    ]
    _add_files(ladder, steps, prefix)


def _optimise(made: Any, path: Path, reader: Any) -> Rung:
    made.optimize()
    made.save(str(path), external_data=True)
    return file_rung("ONNX optimised", path, reader, optimise=False)


def _add_files(ladder: _Ladder, steps: list[tuple[str, Callable[[], Rung]]], prefix: str) -> None:
    skipped = ""
    for name, make in steps:
        try:
            rung = make()
        except Exception as error:
            if name == _PLAIN:  # which nobody gets as a file
                skipped = wording.plain_file_skipped(error)
                continue
            ladder.fail(name, describe_stage_failure("load", error, prefix=prefix))
            return
        ladder.add(rung, skipped)
        skipped = ""


def _add_file(ladder: _Ladder, path: Path, program: Any, folder: Path) -> None:
    """A file that was made elsewhere. Raises UsageError where it is none."""
    saved = loaded = None
    try:
        if path.suffix == ".pt2":
            loaded = load_program(path)
            saved = program_rung(path.name, loaded)
        else:
            file_rung(path.name, path, None, optimise=False).release()
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded: {type(error).__name__}: {first_line(error)}") from error
    if saved is not None:
        call = ladder.comparer.call
        require_inputs(loaded, (call.args, call.kwargs), path)
        ladder.add(saved)
        return
    named = True
    if program is not None:
        decomposed, note = _as_translated(program)
        ladder.add(program_rung("decomposed", decomposed), note)
        named = has_names_of(path, ladder.last)
        if not named and has_scopes(path):  # it is compared with eager, by the names of submodules
            ladder.last, named = None, True
    steps: list[tuple[str, Callable[[], Rung]]] = [
        (path.name, lambda: file_rung(path.name, path, program, optimise=False, named=named)),
        (
            "ONNX Runtime",
            lambda: file_rung("ONNX Runtime", folder / "runtime.onnx", program, optimise=True, given=path),
        ),
    ]
    _add_files(ladder, steps, ladder.comparer.part.prefix)


def _as_translated(program: Any) -> tuple[Any, str]:
    """The program as torch.onnx decomposes it, whose names are those of its files; else as torch does, and why."""
    try:
        return translate(copy.copy(program), optimise=False).made.exported_program, ""
    except Exception as error:
        return program.run_decompositions(), wording.otherwise_decomposed(error)


def _verdict(stages: list[LadderStage]) -> LadderVerdict:
    if any(not one.holds and one.failure is None for one in stages):
        return "differs"
    if any(one.failure is not None for one in stages):
        return "stops"
    values = (value.excuse == "tie" for one in stages for value in one.values)
    rows = (is_tied(row) for one in stages for row in one.rows)
    return "agrees_but_ties" if any(values) or any(rows) else "agrees"


if __name__ == "__main__":
    serve_one_request(LadderRequest, climb)

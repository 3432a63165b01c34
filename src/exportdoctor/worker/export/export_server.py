"""The process behind `exportdoctor export`: one request on stdin, progress and the result on what was stdout."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.export import (
    ExportReply,
    ExportRequest,
    ExportResult,
    ExportSoFar,
    ExportVerdict,
    Precision,
)
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.records.outcome import OF_OTHER_SIZES, Agreement
from exportdoctor.core.records.size_domain import SizeDomain
from exportdoctor.core.records.target import TargetRef
from exportdoctor.report.wording import capture as wording
from exportdoctor.report.wording.scan import substitutions
from exportdoctor.shims import NotApplicable, Shim, ShimTrouble, find, order_shims
from exportdoctor.targets import BuiltPart, BuiltTarget, Plan, build, resolve
from exportdoctor.targets.eager import blame_running_code
from exportdoctor.targets.parts.dynamic_cache import sliding_windows
from exportdoctor.targets.training_mode import in_training_mode
from exportdoctor.worker import environment
from exportdoctor.worker.export.image_input import with_image_input
from exportdoctor.worker.export.part_files import PartExport, PartJob, export_part_files, try_sizes
from exportdoctor.worker.export.prefill_decode import Step, compare_generation, has_pictures, prefill_decode_pair
from exportdoctor.worker.mapped_weights import map_weights_if_short
from exportdoctor.worker.one_request import Progress, Teller, serve_one_request
from exportdoctor.worker.prove.compare_outputs import tensors_in
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.proof_inputs import input_sets
from exportdoctor.worker.prove.repeated_eager import refuse_random, repeatable_sets
from exportdoctor.worker.translate.onnx_session import can_run_on, providers
from exportdoctor.worker.translate.precision import LOW, Float32Model, cost_of_dtype, reference_for

KEEPS_NUMBER_OPEN = "joined-split"
"""The shim without which features that are split by picture fix how many there are."""


@dataclass(frozen=True, kw_only=True)
class PartFile:
    """One part that becomes one file. `suffix` distinguishes the files of a pair."""

    part: BuiltPart
    sets: tuple[InputSet, ...]
    suffix: str = ""
    shims: tuple[Shim, ...] = ()


def export_target(
    request: ExportRequest, doing: Progress, keep: Callable[[ExportResult], None] = lambda result: None
) -> ExportResult:
    """Make the files of a request and verify them. Raises UsageError, TargetError, ShimTrouble, OSError.

    `keep` is given the result before sizes are tried, which may end the process.
    """
    plan = resolve(_choose_device(request))
    doing(f"building {plan.title}")
    reference = reference_for(plan)
    with blame_running_code(f"Building {plan.title} failed"):
        built = build(plan)
    if reference is not None:
        reference.share_with(built)
    if request.to == "onnx":
        providers(built.device)
    map_weights_if_short(built.model, Path(request.folder))
    part = _part(request, plan, built)
    doing("running eager")
    several = _export_several(request, plan, built, part, doing)
    if several.pieces:
        pieces, found = several.pieces, several.found
    else:
        parts = _parts(request, built, part)
        with blame_running_code(f"The eager forward of part {part.name} fails"):
            asked = [_comparable_sets(request, one, input_sets(one, plan, doing=doing)) for one in parts]
        sets = [kept for kept, _ in asked]
        pieces, found = _export_parts(request, built, parts, sets, doing)
        found[0].notes += [*several.notes, *filter(None, (chance for _, chance in asked))]
    if request.cache and all(made.trouble is None for made in found):
        doing(f"generating {request.tokens} tokens")
        pair, steps = [piece.part for piece in pieces], [_step(made) for made in found]
        found[-1].numbers += compare_generation(pair, steps, request.tokens)
    precision = _precision(reference, pieces[0], found)
    for piece, made in zip(pieces, found, strict=False):
        if made.search is not None:
            keep(_result(request, built, found, pieces, precision))
            doing("trying sizes")
            try_sizes(_job(request, built, piece, doing), made)
    return _result(request, built, found, pieces, precision)


@dataclass
class SeveralPictures:
    """An attempt at a file for any number of pictures; without `pieces`, `notes` say why there is none."""

    pieces: list[PartFile] = field(default_factory=list)
    found: list[PartExport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _export_several(
    request: ExportRequest, plan: Plan, built: BuiltTarget, part: BuiltPart, doing: Progress
) -> SeveralPictures:
    """The part with several pictures in its example, under its shims, else with what keeps their number open, too."""
    if part.several is None or request.image_input:
        return SeveralPictures()
    why = ""
    try:
        parts = _parts(request, built, part.several())
        sets = [_comparable_sets(request, one, input_sets(one, plan, doing=doing))[0] for one in parts]
    except Exception as error:  # the model takes no such inputs: the file for one picture stands
        return SeveralPictures(notes=[wording.one_picture(f"{type(error).__name__}: {first_line(error, 160)}")])
    for more in ((), (KEEPS_NUMBER_OPEN,)):
        if more and more[0] in request.shims:
            break
        asked = msgspec.structs.replace(request, shims=(*request.shims, *more))
        try:
            pieces, found = _export_parts(asked, built, parts, sets, doing)
        except (UsageError, ShimTrouble) as error:
            why = why or error.message
            continue
        if all(_is_right(made) for made in found):
            return SeveralPictures(pieces=pieces, found=found)
        trouble = next((made.trouble for made in found if made.trouble is not None), None)
        why = trouble.message if trouble is not None else why or wording.WRONG_FOR_SEVERAL
        for name in (name for made in found for one in made.files for name in (one.name, *one.data)):
            (Path(request.folder) / name).unlink(missing_ok=True)
    return SeveralPictures(notes=[wording.one_picture(first_line(why, 160))])


def _is_right(made: PartExport) -> bool:
    return made.trouble is None and all(row.holds for row in made.numbers if not row.made_up)


def _choose_device(request: ExportRequest) -> TargetRef:
    """The target; with `--device auto` on the device that ONNX Runtime can run on, too."""
    target, device = request.target, request.target.options.device
    if request.to != "onnx" or device != "auto" or can_run_on("cuda"):
        return target
    return msgspec.structs.replace(target, options=msgspec.structs.replace(target.options, device="cpu"))


def _step(made: PartExport) -> Step:
    """The loaded program of a part as a function of the untouched model's keywords."""
    run = next(iter(made.runs.values()))
    return lambda kwargs: tensors_in(run(*made.convert(((), kwargs))))


def _part(request: ExportRequest, plan: Plan, built: BuiltTarget) -> BuiltPart:
    part = built.part(request.part)
    return with_image_input(part, plan) if request.image_input else part


def _parts(request: ExportRequest, built: BuiltTarget, part: BuiltPart) -> tuple[BuiltPart, ...]:
    """What becomes a file of its own: the part, or the pair that generates with a cache."""
    return prefill_decode_pair(part, built) if request.cache else (part,)


def _export_parts(
    request: ExportRequest,
    built: BuiltTarget,
    parts: Sequence[BuiltPart],
    sets: Sequence[tuple[InputSet, ...]],
    doing: Progress,
) -> tuple[list[PartFile], list[PartExport]]:
    """One file of each part, up to the first that fails. Raises UsageError for a shim that applies to none of them."""
    shims = order_shims([find(name, files=request.shim_files, axes=parts[0].axes) for name in request.shims])
    if request.image_input:  # they would hand in what is made inside of the graph
        shims = tuple(shim for shim in shims if shim.soundness != "signature")
    pieces: list[PartFile] = []
    found: list[PartExport] = []
    left_out: list[str] = []
    for part, some in zip(parts, sets, strict=True):
        suffix = f".{part.name}" if request.cache else ""
        piece = PartFile(part=part, sets=some, suffix=suffix, shims=shims)
        while len(found) == len(pieces):
            try:
                found.append(export_part_files(_job(request, built, piece, doing)))
            except NotApplicable as reason:
                left_out.append(reason.shim)
                if left_out.count(reason.shim) == len(parts):
                    message = f"A shim does not apply to part {part.name}: {reason}"
                    raise UsageError(message, hint="Leave it out") from None
                piece = replace(piece, shims=tuple(shim for shim in piece.shims if shim.id != reason.shim))
        pieces.append(piece)
    return pieces, found


def _job(request: ExportRequest, built: BuiltTarget, piece: PartFile, doing: Progress) -> PartJob:
    return PartJob(
        request=request,
        part=piece.part,
        shims=piece.shims,
        sets=piece.sets,
        stem=f"{request.stem}{piece.suffix}",
        doing=doing,
        device=built.device,
        find_losses=built.dtype in LOW and not request.cache,
    )


def _comparable_sets(
    request: ExportRequest, part: BuiltPart, sets: Sequence[InputSet]
) -> tuple[tuple[InputSet, ...], str]:
    """As `repeatable_sets`; for an ONNX file, eager's answer may not depend on random numbers either."""
    found = repeatable_sets(part, sets)
    if request.to == "onnx":
        refuse_random(part, found[0][0])
    return found


def _precision(reference: Float32Model | None, piece: PartFile, found: list[PartExport]) -> Precision | None:
    if reference is None or any(made.trouble is not None and made.trouble.stage != "numbers" for made in found):
        return None
    return cost_of_dtype(reference, piece.part, piece.sets[0], tuple(loss for made in found for loss in made.losses))


def _result(
    request: ExportRequest,
    built: BuiltTarget,
    found: list[PartExport],
    pieces: list[PartFile],
    precision: Precision | None,
) -> ExportResult:
    numbers = tuple(row for made in found for row in made.numbers)
    trouble = next((made.trouble for made in found if made.trouble is not None), None)
    notes = [*substitutions(built.substitutions), *(note for made in found for note in made.notes)]
    domains = tuple(made.domain for made in found if made.domain is not None)
    if numbers and not any(row.kind in OF_OTHER_SIZES for row in numbers):
        notes.append(wording.ONE_SIZE)
    part = pieces[0].part
    if layers := in_training_mode(part.module):
        notes.append(wording.training_mode(layers))
    needs_positions = request.cache and has_pictures(part, pieces[-1].part)
    if needs_positions:
        notes.append(wording.TAKES_POSITIONS)
    if request.cache and (windows := sliding_windows(getattr(part.module, "config", None))):
        notes.append(wording.sliding_window(windows[0]))
    if request.image_input and part.dynamic_shapes is None:
        notes.append(wording.fixed_images(tuple(part.kwargs["image"].shape)))
    verdict = _verdict(numbers, trouble, domains)
    fixed = verdict == "proved" and request.target.options.static
    return ExportResult(
        verdict="specialised" if fixed else verdict,
        fixed=fixed,
        files=tuple(one for made in found for one in made.files),
        numbers=numbers,
        trouble=trouble,
        precision=precision,
        notes=tuple(dict.fromkeys(notes)),
        unchecked=tuple(dict.fromkeys(one for made in found for one in made.unchecked)),
        shims=tuple(dict.fromkeys(shim.id for piece in pieces for shim in piece.shims)),
        needs_caches=any(_takes_or_gives_caches(piece.part) for piece in pieces),
        needs_positions=needs_positions,
        imports=tuple(sorted({name for made in found for name in made.imports})),
        classes=tuple(sorted({name for made in found for name in made.classes})),
        sets=tuple(sorted({name for made in found for name in made.sets})),
        facts=_unique(made.facts for made in found),
        environment=environment.versions(),
        weights=built.weights,
        device=built.device,
        dtype=built.dtype,
        parameters=built.parameters,
        opset=next((made.opset for made in found if made.opset), 0),
        ran_in="torch" if request.to == "pt2" else "ONNX Runtime",
        domains=domains,
    )


def _unique(several: Iterable[dict[str, str]]) -> tuple[dict[str, str], ...]:
    found: list[dict[str, str]] = []
    for one in several:
        found += [one] if one not in found else []
    return tuple(found)


def _verdict(numbers: tuple[Agreement, ...], trouble: Any, domains: tuple[SizeDomain, ...]) -> ExportVerdict:
    if trouble is not None and trouble.stage != "numbers":
        return "fails"
    if all(row.holds for row in numbers):
        return "specialised" if any(one.wrong_at for one in domains) else "proved"
    apart = OF_OTHER_SIZES | {"layout"}
    wrong = any(not row.holds and not row.refused and row.kind not in apart for row in numbers)
    if numbers and numbers[0].holds and not wrong:
        return "specialised"
    return "fails" if numbers and numbers[0].refused else "differs"


def _takes_or_gives_caches(part: BuiltPart) -> bool:
    from contextlib import nullcontext

    return part.prepare is not nullcontext


def _answer(request: ExportRequest, tell: Teller) -> ExportReply:
    try:
        return export_target(request, tell, lambda found: tell.keep(ExportSoFar(result=found)))
    except ShimTrouble as error:
        return Refused(message=error.message, fault="usage", hint=error.hint)  # another choice of shims may do
    except OSError as error:
        return _disk(error, os.path.join(request.folder, request.stem))
    except torch.cuda.OutOfMemoryError as error:
        return Refused(message=f"GPU out of memory: {first_line(error)}", fault="usage", hint="Use --device cpu")


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def _disk(error: OSError, path: str) -> Refused:
    place, what = str(error.filename or path), error.strerror or str(error)
    hint = "Free some space, or choose another folder" if error.errno in _FULL else "Choose another folder"
    return Refused(message=f"{place} cannot be written: {what}", fault="usage", hint=hint)


if __name__ == "__main__":
    serve_one_request(ExportRequest, _answer)

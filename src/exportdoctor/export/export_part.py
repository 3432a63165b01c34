"""One export, from its request to files in their place: all files, or the proof alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from exportdoctor.core.codec import decode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.protocol.export import ExportedFile, ExportReply, ExportRequest, ExportResult
from exportdoctor.export.ask_while_building import ask_while_building
from exportdoctor.export.install_files import check_output_path, draft_folder, install, write_draft
from exportdoctor.export.proof_file import ProofFile, as_json, as_markdown, proof_file
from exportdoctor.export.shims_module import CACHE_SHIMS, CACHES, ModuleHeader, file_name, shims_module
from exportdoctor.process.supervise import Limits, build_limits
from exportdoctor.report.wording import export_headline
from exportdoctor.shims import Shim, find, installed_versions, order_shims

_KEPT = ("proved", "specialised")


@dataclass(frozen=True, kw_only=True)
class InstalledExport:
    """The result, and the files that exist now, the requested one first."""

    request: ExportRequest
    result: ExportResult
    shims: tuple[Shim, ...]
    placed: tuple[Path, ...]


def export_part(
    request: ExportRequest,
    *,
    output: Path,
    command: str,
    doing: Callable[[str], None],
    building: Limits | None = None,
) -> InstalledExport:
    """Make the files beside `output`, prove them, and move them there if their numbers hold.

    `building` is what the process may take while it builds the target. Raises the error that it refuses with,
    TargetError where the target's code ends it or exceeds the limits of building, WorkerLost before.
    """
    check_output_path(output)
    with draft_folder(output.parent, request.stem) as draft:
        inside, limits = msgspec.structs.replace(request, folder=str(draft.absolute())), building or build_limits()
        result: ExportResult = ask_while_building(
            "worker.export.export_server", inside, ExportReply, limits, doing=doing, steps=2, part=request.part
        )
        names = tuple(result.shims)
        if result.needs_caches and not set(CACHE_SHIMS) & set(names):
            names = (*names, CACHES)
        shims = order_shims([_find_shim(name, request) for name in names])
        final = _install(request, result, draft, output.parent) if result.verdict in _KEPT else ()
        texts = _texts(request, result, shims, command, output=output)
        for name, data in texts.items():
            write_draft(draft / name, data)
        return InstalledExport(
            request=request, result=result, shims=shims, placed=(*final, *install(draft, output.parent, [*texts]))
        )


def _find_shim(name: str, request: ExportRequest) -> Shim:
    kind, _, axis = name.partition(":")
    axes = {axis: ()} if kind == "static-dim" and axis else None
    return find(name, files=request.shim_files, axes=axes)


def _install(request: ExportRequest, result: ExportResult, draft: Path, folder: Path) -> tuple[Path, ...]:
    """Weights first, so that no file exists without its weights."""
    data = [name for one in result.files for name in one.data]
    moved = install(draft, folder, [*data, *(one.name for one in result.files)])
    return (*moved[len(data) :], *moved[: len(data)])


def stem_of_proof(stem: str, output: Path, files: Sequence[ExportedFile]) -> str:
    """That of the files; where the proof of that name is of another file, which is still there, the name of ours, which
    it keeps from then on."""
    if (output.parent / f"{output.name}.proof.json").exists():
        return output.name
    try:
        other: ProofFile = decode((output.parent / f"{stem}.proof.json").read_bytes(), ProofFile)
    except (OSError, StoreError):
        return stem
    names, ours = [one.name for one in other.files], {output.name, *(one.name for one in files)}
    is_there = bool(names) and all((output.parent / name).is_file() for name in names)
    return output.name if is_there and ours.isdisjoint(names) else stem


def _texts(
    request: ExportRequest, result: ExportResult, shims: Sequence[Shim], command: str, *, output: Path
) -> dict[str, bytes]:
    stem = stem_of_proof(request.stem, output, result.files)
    texts = {f"{stem}.proof.json": as_json(proof_file(request, result, shims, command))}
    texts[f"{stem}.proof.md"] = as_markdown(request, result, shims, command).encode()
    if shims and result.verdict in _KEPT:
        kept = {"torch", "transformers", "onnxruntime"} | {name for shim in shims for name in shim.needs}
        known = {**installed_versions(), **result.environment}
        about = ModuleHeader(
            title=request.target.ref,
            part=request.part,
            made_by=command,
            versions={name: value for name, value in known.items() if name in kept},
            program=result.files[0].name if result.files else "",
            proved=export_headline(request, result),
            imports=result.imports,
            classes=result.classes,
            sets=result.sets,
            facts=result.facts,
            image_input=request.image_input,
            next_positions=result.needs_positions,
        )
        texts[file_name(request.target.ref, request.part)] = shims_module(shims, about).encode()
    return texts

"""One export from its order to files in their place. Yields nothing half-done: all files, or the proof alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from exportdoctor.core.protocol.export import ExportRequest, ExportResult
from exportdoctor.export.client import request_export
from exportdoctor.export.install_files import check_output_path, draft_folder, install, write_draft
from exportdoctor.export.proof_file import as_json, as_markdown, proof_file
from exportdoctor.export.shims_module import CACHES, ModuleHeader, file_name, shims_module
from exportdoctor.report.wording import export_headline
from exportdoctor.shims import Shim, find, installed_versions, order_shims

_KEPT = ("proved", "specialised")


@dataclass(frozen=True, kw_only=True)
class InstalledExport:
    """What was made, and the files that are there now, the one asked for first."""

    order: ExportRequest
    handed: ExportResult
    shims: tuple[Shim, ...]
    placed: tuple[Path, ...]


def export_part(order: ExportRequest, *, output: Path, command: str, doing: Callable[[str], None]) -> InstalledExport:
    """Make the files beside `output`, prove them, and put them there if their numbers hold. Raises what stops it."""
    check_output_path(output)
    with draft_folder(output.parent, order.stem) as draft:
        handed = request_export(msgspec.structs.replace(order, folder=str(draft)), doing)
        names = tuple(handed.shims)
        if handed.needs_caches and CACHES not in names:
            names = (*names, CACHES)
        shims = order_shims([_find_shim(name, order) for name in names])
        final = _install(order, handed, draft, output.parent) if handed.verdict in _KEPT else ()
        texts = _texts(order, handed, shims, command)
        for name, data in texts.items():
            write_draft(draft / name, data)
        return InstalledExport(
            order=order, handed=handed, shims=shims, placed=(*final, *install(draft, output.parent, [*texts]))
        )


def _find_shim(name: str, order: ExportRequest) -> Shim:
    kind, _, axis = name.partition(":")
    axes = {axis: ()} if kind == "static-dim" and axis else None
    return find(name, files=order.shim_files, axes=axes)


def _install(order: ExportRequest, handed: ExportResult, draft: Path, folder: Path) -> tuple[Path, ...]:
    """Weights first, so that no file is there whose weights are not."""
    data = [name for one in handed.files for name in one.data]
    moved = install(draft, folder, [*data, *(one.name for one in handed.files)])
    return (*moved[len(data) :], *moved[: len(data)])


def _texts(order: ExportRequest, handed: ExportResult, shims: Sequence[Shim], command: str) -> dict[str, bytes]:
    texts = {f"{order.stem}.proof.json": as_json(proof_file(order, handed, shims, command))}
    texts[f"{order.stem}.proof.md"] = as_markdown(order, handed, shims, command).encode()
    if shims and handed.verdict in _KEPT:
        kept = {"torch", "transformers", "onnxruntime"} | {name for shim in shims for name in shim.needs}
        known = {**installed_versions(), **handed.environment}
        about = ModuleHeader(
            title=order.target.ref,
            part=order.part,
            made_by=command,
            versions={name: value for name, value in known.items() if name in kept},
            program=handed.files[0].name if handed.files else "",
            proved=export_headline(order, handed),
            imports=handed.imports,
            image_input=order.image_input,
        )
        texts[file_name(order.target.ref, order.part)] = shims_module(shims, about).encode()
    return texts

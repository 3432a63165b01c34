"""The proof of an export as files with the same content: JSON for scripts, Markdown for people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from exportdoctor.core.codec import pretty
from exportdoctor.core.protocol.export import ExportedFile, ExportRequest, ExportResult, Precision, StageFailure
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.core.records.size_domain import SizeDomain
from exportdoctor.report.result_tables import domain_tables, markdown_tables
from exportdoctor.report.wording import AGREEMENT_HEADER, agreement_cell, export_headline, export_lines
from exportdoctor.shims import Shim

SCHEMA = "exportdoctor.proof/1"


class ShimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A shim that was applied, and what its soundness rests on."""

    id: str
    soundness: str
    precondition: str = ""


class ProofFile(msgspec.Struct, frozen=True, kw_only=True):
    """`<stem>.proof.json`. Keys are a contract; new ones may be added."""

    schema: str = SCHEMA
    target: str
    part: str
    to: str
    verdict: str
    fixed: bool = False
    command: str
    image_input: bool
    shims: tuple[ShimRecord, ...]
    files: tuple[ExportedFile, ...]
    numbers: tuple[Agreement, ...]
    ran_in: str
    imports: tuple[str, ...] = ()
    trouble: StageFailure | None = None
    precision: Precision | None = None
    notes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    weights: str = ""
    device: str = ""
    dtype: str = ""
    parameters: int = 0
    opset: int = 0
    domains: tuple[SizeDomain, ...] = ()
    environment: dict[str, str] = {}


def proof_file(request: ExportRequest, result: ExportResult, shims: Sequence[Shim], command: str) -> ProofFile:
    """The record of the exported files and of their comparisons with eager."""
    return ProofFile(
        target=request.target.ref,
        part=request.part,
        to=request.to,
        verdict=result.verdict,
        fixed=result.fixed,
        command=command,
        image_input=request.image_input,
        shims=tuple(
            ShimRecord(id=shim.id, soundness=shim.soundness, precondition=shim.precondition)
            for shim in shims
            if shim.id in result.shims
        ),
        files=result.files,
        numbers=result.numbers,
        ran_in=result.ran_in,
        imports=result.imports,
        trouble=result.trouble,
        precision=result.precision,
        notes=result.notes,
        unchecked=result.unchecked,
        weights=result.weights,
        device=result.device,
        dtype=result.dtype,
        parameters=result.parameters,
        opset=result.opset,
        domains=result.domains,
        environment=result.environment,
    )


def as_json(proof: ProofFile) -> bytes:
    """The file's bytes."""
    return pretty(proof)


def as_markdown(request: ExportRequest, result: ExportResult, shims: Sequence[Shim], command: str) -> str:
    """The same for a reader."""
    used = [shim for shim in shims if shim.id in result.shims]
    rows = [f"| {row.inputs} | {agreement_cell(row)} |" for row in result.numbers]
    sections = [
        f"# {export_headline(request, result)}",
        f"`{command}`",
        "\n".join(f"- **{shim.id}** ({shim.soundness}): {shim.title}" for shim in used) or "No shims.",
        "\n".join([f"| {' | '.join(AGREEMENT_HEADER)} |", "|---|---|", *rows]),
        *("\n".join(markdown_tables(domain_tables(one))) for one in result.domains),
        "```\n" + "\n".join(export_lines(request, result, shims)) + "\n```",
        ", ".join(f"{name} {version}" for name, version in result.environment.items()),
    ]
    return "\n\n".join(sections) + "\n"

"""The proof of an export as files with the same content: JSON for scripts, Markdown for people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from exportdoctor.core.codec import pretty
from exportdoctor.core.outcome import Agreement
from exportdoctor.core.protocol.export import ExportedFile, ExportRequest, ExportResult, Precision, StageFailure
from exportdoctor.report.wording import agreement_cell, export_headline, export_lines
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
    weights: str = ""
    device: str = ""
    dtype: str = ""
    parameters: int = 0
    opset: int = 0
    environment: dict[str, str] = {}


def proof_file(order: ExportRequest, handed: ExportResult, shims: Sequence[Shim], command: str) -> ProofFile:
    """The record of what was made and what it computed."""
    return ProofFile(
        target=order.target.ref,
        part=order.part,
        to=order.to,
        verdict=handed.verdict,
        command=command,
        image_input=order.image_input,
        shims=tuple(
            ShimRecord(id=shim.id, soundness=shim.soundness, precondition=shim.precondition)
            for shim in shims
            if shim.id in handed.shims
        ),
        files=handed.files,
        numbers=handed.numbers,
        ran_in=handed.ran_in,
        imports=handed.imports,
        trouble=handed.trouble,
        precision=handed.precision,
        notes=handed.notes,
        weights=handed.weights,
        device=handed.device,
        dtype=handed.dtype,
        parameters=handed.parameters,
        opset=handed.opset,
        environment=handed.environment,
    )


def as_json(proof: ProofFile) -> bytes:
    """The file's bytes."""
    return pretty(proof)


def as_markdown(order: ExportRequest, handed: ExportResult, shims: Sequence[Shim], command: str) -> str:
    """The same for a reader."""
    used = [shim for shim in shims if shim.id in handed.shims]
    rows = [f"| {row.inputs} | {agreement_cell(row)} |" for row in handed.numbers]
    sections = [
        f"# {export_headline(order, handed)}",
        f"`{command}`",
        "\n".join(f"- **{shim.id}** ({shim.soundness}): {shim.title}" for shim in used) or "No shims.",
        "\n".join(["| inputs | compared with unpatched eager |", "|---|---|", *rows]),
        "```\n" + "\n".join(export_lines(order, handed, shims)) + "\n```",
        ", ".join(f"{name} {version}" for name, version in handed.environment.items()),
    ]
    return "\n\n".join(sections) + "\n"

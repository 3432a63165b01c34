"""The protocol of `exportdoctor export` and its worker: one JSON object a line, one request, then replies."""

from __future__ import annotations

from typing import Literal

import msgspec

from exportdoctor.core.protocol.reply import Refused, Reply
from exportdoctor.core.records.outcome import Agreement, Stage
from exportdoctor.core.records.size_domain import SizeDomain
from exportdoctor.core.records.target import TargetRef

Format = Literal["pt2", "onnx"]

SCRATCH = "EXPORTDOCTOR_SCRATCH"
"""The variable that tells a process where its temporary files go: who asks it removes them, also where it is killed."""

OTHER_INPUTS_STEP = "running eager on other inputs"
"""The step in which the target's code runs on all inputs but the example."""

ExportVerdict = Literal["proved", "specialised", "differs", "fails"]
"""`specialised`: right at the traced sizes or memory layout alone. `differs`: other numbers than eager's. `fails`:
nothing that runs."""


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to export. Files are written to `folder`, a folder of this export's own, as `stem` + suffix.

    `opset` 0 = torch's own choice. `split` is the number of ONNX files. With `cache` the part is a pair, prefill and
    decode, which must generate `tokens` tokens as eager does.
    """

    target: TargetRef
    part: str
    to: Format
    folder: str
    stem: str
    shims: tuple[str, ...] = ()
    shim_files: tuple[str, ...] = ()
    opset: int = 0
    external_data: bool = False
    split: int = 1
    image_input: bool = False
    cache: bool = False
    tokens: int = 20


class ExportProgress(Reply, frozen=True, kw_only=True, tag="progress"):
    """What the worker does now, for the progress display. Any number of these come before the result."""

    what: str


class ValueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One input of the file, or one output. A dynamic size is a name, a fixed one a number."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file, with what it takes and gives. `data` are files that it refers to; `bytes` counts all of them.

    `load_seconds` is how long the first load took, `peak_mib` the memory that loading and a run on the example took at
    most; 0.0 where it was not measured: pieces, and a file that this processor cannot run as it is.
    """

    name: str
    bytes: int
    data: tuple[str, ...] = ()
    inputs: tuple[ValueInfo, ...] = ()
    outputs: tuple[ValueInfo, ...] = ()
    nodes: int = 0
    what: str = ""
    load_seconds: float = 0.0
    peak_mib: float = 0.0


class StageFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A stage that failed, and where. `node` is the FX or ONNX node, `module` the submodule whose code made it.

    `alone` is the smallest submodule that fails in the same way by itself, None where none was found or tried;
    `asked` is how many were tried. `takes` are the dtypes of an ONNX node's inputs.
    """

    stage: Stage
    exception: str
    message: str
    node: str = ""
    op: str = ""
    module: str = ""
    module_class: str = ""
    file: str = ""
    line: int = 0
    source: str = ""
    alone: str | None = None
    asked: int = 0
    where: str = ""
    takes: tuple[str, ...] = ()


class PrecisionLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Where a low precision loses most: `before` and `after` are relative errors of the op's inputs and output."""

    node: str
    op: str
    module: str
    before: float
    after: float
    source: str = ""


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """What a dtype costs: eager in it beside eager in float32, with the same weights and inputs.

    `share` is the largest difference over the largest value. `overflow` is the first op whose output is not finite.
    """

    dtype: str
    max_abs: float
    share: float
    digits: float
    losses: tuple[PrecisionLoss, ...] = ()
    overflow: PrecisionLoss | None = None


class ExportResult(Reply, frozen=True, kw_only=True, tag="result"):
    """The exported files and what they compute; `ran_in` is the engine that the numbers come from.

    `imports` are the modules to import before a saved program can be loaded, `classes` those of its inputs and outputs
    that are registered, as `module:qualified.name`, `needs_caches` says that it takes or gives
    a cache, whose class is registered nowhere, `needs_positions` that the caller must say where each new token stands.
    `sets` are the attributes that what was hoisted set for the example, `facts` what of the
    example is part of each program, by what it is of, `unchecked` is what the program asserts and the
    file cannot check.
    `domains` are the sizes that each file takes, and what was tried at their boundaries. `fixed`: it is specialised to
    the sizes of the example because that was asked for, and right there.
    """

    verdict: ExportVerdict
    fixed: bool = False
    files: tuple[ExportedFile, ...] = ()
    numbers: tuple[Agreement, ...] = ()
    trouble: StageFailure | None = None
    precision: Precision | None = None
    notes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    shims: tuple[str, ...] = ()
    needs_caches: bool = False
    needs_positions: bool = False
    imports: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    facts: tuple[dict[str, str], ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    weights: str = ""
    device: str = ""
    dtype: str = ""
    parameters: int = 0
    opset: int = 0
    ran_in: str = ""
    domains: tuple[SizeDomain, ...] = ()


class ExportSoFar(Reply, frozen=True, kw_only=True, tag="so_far"):
    """What is the result if the process ends before it has told one."""

    result: ExportResult


ExportReply = ExportProgress | ExportSoFar | Refused | ExportResult

"""What `exportdoctor export` and its worker say to each other: one JSON object a line. Torch-free."""

from __future__ import annotations

from typing import Literal

import msgspec

from exportdoctor.core.outcome import Agreement
from exportdoctor.core.target import TargetRef

Format = Literal["pt2", "onnx"]

ExportVerdict = Literal["proved", "specialised", "differs", "fails"]
"""`specialised`: right at the traced sizes alone. `differs`: other numbers than eager's. `fails`: nothing that runs."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to make. `folder` is where files may be written, under `stem` + suffix; nobody else writes there.

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


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="say"):
    """From the worker: any number of Doing, then one ExportResult or Refused."""


class Doing(Reply, frozen=True, kw_only=True, tag="doing"):
    """What it is at, for whoever watches."""

    what: str


class Refused(Reply, frozen=True, kw_only=True, tag="refused"):
    """Why there is nothing to hand over: the target, the options or the machine, never the export."""

    message: str
    hint: str = ""
    fault: Literal["usage", "target", "internal"] = "usage"
    stack: tuple[str, ...] = ()


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One input of the file, or one output. A dynamic size is a name, a fixed one a number."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """One file, with what it takes and gives. `data` are files that it refers to; `bytes` counts all of them."""

    name: str
    bytes: int
    data: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Input, ...] = ()
    nodes: int = 0
    what: str = ""


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """A stage that failed, and where. `node` is the FX or ONNX node, `module` the submodule whose code made it.

    `alone` is the smallest submodule that fails in the same way by itself, None where none was found or asked.
    """

    stage: str
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


class Loss(msgspec.Struct, frozen=True, kw_only=True):
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
    losses: tuple[Loss, ...] = ()
    overflow: Loss | None = None


class ExportResult(Reply, frozen=True, kw_only=True, tag="handed"):
    """What was made and what it computes; `ran_in` is the engine that the numbers come from.

    `imports` are the modules to import before a saved program can be loaded, `needs_caches` says that it takes or gives
    a cache, whose class is registered nowhere.
    """

    verdict: ExportVerdict
    files: tuple[Written, ...] = ()
    numbers: tuple[Agreement, ...] = ()
    trouble: Trouble | None = None
    precision: Precision | None = None
    notes: tuple[str, ...] = ()
    shims: tuple[str, ...] = ()
    needs_caches: bool = False
    imports: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    weights: str = ""
    device: str = ""
    dtype: str = ""
    parameters: int = 0
    opset: int = 0
    ran_in: str = ""


AnyReply = Doing | Refused | ExportResult

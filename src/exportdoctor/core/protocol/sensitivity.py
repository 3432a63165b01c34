"""The protocol of `exportdoctor sensitivity` and its worker: one request, progress, then one result."""

from __future__ import annotations

from typing import Literal

import msgspec

from exportdoctor.core.protocol.export import ExportProgress
from exportdoctor.core.protocol.reply import Refused, Reply
from exportdoctor.core.records.target import TargetRef

Lowering = Literal["int8", "w8a8", "w4a16", "fp16", "bf16"]
"""`int8`: ONNX Runtime's static quantisation of products and convolutions. `w8a8`: with symmetric activations and a
scale for each channel of weights. `w4a16`: weights in blocks of four bits. `fp16`, `bf16`: values of 16 bits."""


Engine = Literal["onnxruntime", "torchao", "pt2e"]
"""What lowers layers: ONNX Runtime's quantisers those of a file; torchao the linear layers of the module, of which a
program is then exported; PT2E, with torchao's quantiser for x86, the submodules of the exported program. For torchao
`int8` is weights alone; for both `w8a8` scales activations anew at each call."""


class SensitivityRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What each layer of a target's part, or of an ONNX file, costs in `to`.

    `calibration` is a file of inputs; '' makes them. `budget` is the largest error of an output, over its size.
    `questions` bounds the search of the smallest set.
    """

    to: Lowering
    target: TargetRef | None = None
    part: str = ""
    file: str = ""
    calibration: str = ""
    budget: float = 0.05
    shims: tuple[str, ...] = ()
    shim_files: tuple[str, ...] = ()
    questions: int = 400
    engine: Engine = "onnxruntime"


class LayerCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer costs. Errors are root mean squares over that of the reference, the worst of the input sets.

    `local`: of its own output, if it alone is lowered. `alone`: of the model's outputs then. `kept`: of the model's
    outputs if all others are lowered. `cosine` is the least one, `kl` and `top1` are about outputs that are logits,
    -1 where there are none; all three with this layer alone lowered. `depth` is its place in the graph, from 0.
    `folded` are other submodules that were folded into its nodes, as a batch norm is into a convolution.
    """

    name: str
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    depth: int
    local: float
    alone: float
    kept: float
    cosine: float = 1.0
    kl: float = -1.0
    top1: float = -1.0
    file: str = ""
    line: int = 0
    folded: tuple[str, ...] = ()


class PairCost(msgspec.Struct, frozen=True, kw_only=True):
    """Two layers lowered together, and what their single errors would add up to."""

    first: str
    second: str
    together: float
    expected: float


class SensitivityResult(Reply, frozen=True, kw_only=True, tag="sensitivity"):
    """The layers, most sensitive first, and the smallest set found that keeps the outputs within the budget.

    `whole` is the error with all layers lowered, `searched` that with `kept` in high precision on the sets of the
    search, `proved` the same on sets that were not used before, `made` that of a file which the quantiser itself made
    with this list, on the same sets; -1 where there is none. `sets` are the numbers of sets for calibration, search and
    proof. `summed` is how many layers a sum of single errors would have kept. `questions`: sets of layers that were
    asked to find `kept`.
    """

    to: Lowering
    target: str
    part: str = ""
    shims: tuple[str, ...] = ()
    layers: tuple[LayerCost, ...] = ()
    kept: tuple[str, ...] = ()
    kept_nodes: tuple[str, ...] = ()
    budget: float = 0.0
    whole: float = 0.0
    searched: float = 0.0
    proved: float = 0.0
    made: float = -1.0
    summed: int = 0
    questions: int = 0
    pairs: tuple[PairCost, ...] = ()
    sets: tuple[int, int, int] = (0, 0, 0)
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    engine: Engine = "onnxruntime"

    @property
    def holds(self) -> bool:
        """Whether the outputs stay within the budget on inputs that were not used to find the set."""
        return self.proved <= self.budget and self.made <= self.budget


SensitivityReply = ExportProgress | Refused | SensitivityResult

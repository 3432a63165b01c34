"""The layers of an ONNX graph: its nodes by the submodule that they come from, in the order in which they run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from exportdoctor.core.protocol.sensitivity import Lowering
from exportdoctor.worker.sensitivity.folded_modules import PRODUCTS, OwnerFinder
from exportdoctor.worker.translate.failed_node import user_frame

WEIGHTED = {"int8": PRODUCTS, "w8a8": PRODUCTS, "w4a16": ("MatMul",)}
"""The operators that ONNX Runtime's quantisers are asked to lower. Those for 16 bits lower all that compute floats."""

_NO_NUMBERS = frozenset({"Constant", "Cast", "Identity", "Shape", "Reshape", "Transpose", "Squeeze", "Unsqueeze",
                         "Flatten", "Expand", "Split", "Slice", "Concat", "ConstantOfShape", "Range"})  # fmt: skip
"""Operators that compute nothing, so that they lose nothing."""


@dataclass(kw_only=True)
class GraphLayer:
    """Nodes that are lowered together: those of one submodule, or one that belongs to none. `folded` are the other
    submodules that were folded into them."""

    name: str
    depth: int
    nodes: list[Any] = field(default_factory=list)
    file: str = ""
    line: int = 0
    folded: list[str] = field(default_factory=list)


def find_layers(
    graph: Any,
    to: Lowering,
    floats: Mapping[str, bool],
    *,
    prefix: str = "",
    program: Any = None,
    without: Collection[str] = (),
) -> list[GraphLayer]:
    """The layers with something to lower. `floats` says which values are of float32; `prefix` is the part's place,
    `program` what its file was made of; the nodes `without` are left out."""
    constants = {one.name for one in graph.initializer}
    owners = OwnerFinder(graph=graph, program=program)
    found: dict[str, GraphLayer] = {}
    for place, node in enumerate(graph.node):
        if node.name in without or not can_be_lowered(node, to, floats, constants):
            continue
        owner = owners.find(node)
        name = ".".join(filter(None, (prefix, owner.module))) if owner.module else node.name or node.output[0]
        layer = found.setdefault(name, GraphLayer(name=name, depth=place))
        layer.nodes.append(node)
        folded = (".".join(filter(None, (prefix, one))) for one in owner.folded)
        layer.folded += [one for one in folded if one not in layer.folded]
        frame = user_frame(owner.fact)
        if frame is not None and not layer.file:
            layer.file, layer.line = frame.file, frame.line
    layers = list(found.values())
    for number, layer in enumerate(layers):
        layer.depth = number
    return layers


def can_be_lowered(node: Any, to: Lowering, floats: Mapping[str, bool], constants: set[str]) -> bool:
    """Whether a node's values, where they are of the dtype that `floats` says, can be of this precision."""
    if to in WEIGHTED:
        weights = any(name in constants for name in node.input[1:2])
        return node.op_type in WEIGHTED[to] and all(floats.get(name, False) for name in node.input[:2]) and (
            weights or to != "w4a16"
        )  # fmt: skip
    has_graphs = any(one.HasField("g") or one.graphs for one in node.attribute)
    return node.op_type not in _NO_NUMBERS and not has_graphs and any(floats.get(name, False) for name in node.output)


def lowered_values(node: Any, floats: Mapping[str, bool]) -> Iterator[str]:
    """The float values that a node takes."""
    yield from (name for name in dict.fromkeys(node.input) if floats.get(name, False))

"""The layers of an ONNX graph: its nodes by the submodule that they come from, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from exportdoctor.core.protocol.sensitivity import Lowering
from exportdoctor.worker.numbers.file_names import scope_in_name
from exportdoctor.worker.translate.failed_node import onnx_fact, user_frame

_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
WEIGHTED = {"int8": _PRODUCTS, "w8a8": _PRODUCTS, "w4a16": ("MatMul",)}
"""The operators that ONNX Runtime's quantisers are asked to lower. Those for 16 bits lower all that compute floats."""

_NO_NUMBERS = frozenset({"Constant", "Cast", "Identity", "Shape", "Reshape", "Transpose", "Squeeze", "Unsqueeze",
                         "Flatten", "Expand", "Split", "Slice", "Concat", "ConstantOfShape", "Range"})  # fmt: skip
"""Operators that compute nothing, so that they lose nothing."""


@dataclass(kw_only=True)
class GraphLayer:
    """Nodes that are lowered together: those of one submodule, or one that belongs to none."""

    name: str
    depth: int
    nodes: list[Any] = field(default_factory=list)
    file: str = ""
    line: int = 0


def find_layers(graph: Any, to: Lowering, floats: Mapping[str, bool], *, prefix: str = "") -> list[GraphLayer]:
    """The layers with something to lower. `floats` says which values are of float32; `prefix` is the part's place."""
    constants = {one.name for one in graph.initializer}
    found: dict[str, GraphLayer] = {}
    for place, node in enumerate(graph.node):
        if not _can_be_lowered(node, to, floats, constants):
            continue
        fact = onnx_fact(node)
        module = fact.module or scope_in_name(node.name)
        name = ".".join(filter(None, (prefix, module))) if module else node.name or node.output[0]
        layer = found.setdefault(name, GraphLayer(name=name, depth=place))
        layer.nodes.append(node)
        frame = user_frame(fact)
        if frame is not None and not layer.file:
            layer.file, layer.line = frame.file, frame.line
    layers = list(found.values())
    for number, layer in enumerate(layers):
        layer.depth = number
    return layers


def _can_be_lowered(node: Any, to: Lowering, floats: Mapping[str, bool], constants: set[str]) -> bool:
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

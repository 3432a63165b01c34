"""A file in which values of 16 bits are computed in float32 and rounded, as ONNX Runtime's CPU computes float16.

It has few kernels for bfloat16, and numpy has no such arrays. So inputs and outputs are float32 as well, and the
quantisers find float32 where they look for it. Nodes keep their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from exportdoctor.worker.translate.onnx_session import FLOATS_OF_8_BITS, element_type, torch_dtypes

_SHORT = (torch.float16, torch.bfloat16)
_CONVERTS = frozenset({"Cast", "CastLike", "Constant"})


@dataclass(frozen=True, kw_only=True)
class ShortFloats:
    """The dtypes of 16 bits that a file had, and for each node that is computed in float32 now, what it gave before."""

    dtypes: tuple[torch.dtype, ...] = ()
    given: Mapping[str, torch.dtype] = field(default_factory=dict)


def value_kinds(model: Any) -> dict[str, int]:
    """ONNX's number for the dtype of each value of a model, as far as its shapes can be inferred."""
    from onnx import shape_inference

    try:
        inferred = shape_inference.infer_shapes(model)
    except Exception:  # more than a protobuf message holds
        inferred = model
    graph = inferred.graph
    found = {one.name: one.data_type for one in graph.initializer}
    for one in (*graph.value_info, *graph.input, *graph.output):
        found[one.name] = one.type.tensor_type.elem_type
    return found


def as_array(value: Any) -> Any:
    """A tensor or number as the array that such a file takes."""
    tensor = torch.as_tensor(value).detach()
    return (tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize < 4 else tensor).numpy()


def widen_short_floats(model: Any) -> ShortFloats:
    """Change a model, every node of which has a name, so that it computes in float32 what it computed in 16 bits."""
    dtypes = {number: dtype for number, dtype in torch_dtypes().items() if dtype in (*_SHORT, *FLOATS_OF_8_BITS)}
    kinds = {name: dtypes[kind] for name, kind in value_kinds(model).items() if kind in dtypes}
    if not kinds:
        return ShortFloats()
    widener = _Widener(model=model, kinds=kinds)
    widener.widen_nodes()
    widener.widen_ends()
    short = {dtype for dtype in kinds.values() if dtype in _SHORT}
    return ShortFloats(dtypes=tuple(sorted(short, key=str)), given=widener.given)


@dataclass(kw_only=True)
class _Widener:
    """Changes a model. `kinds` are the dtypes of its values of less than 32 bits."""

    model: Any
    kinds: Mapping[str, torch.dtype]
    given: dict[str, torch.dtype] = field(default_factory=dict)
    _wide: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._constants = {one.name: one for one in self.model.graph.initializer}

    def widen_nodes(self) -> None:
        """Compute in float32 what nodes take and give in 16 bits; those that hold graphs stay."""
        graph, known = self.model.graph, self._known_values()
        nodes: list[Any] = []
        for node in graph.node:
            takes, gives = ([name for name in dict.fromkeys(names) if self._is_short(name)]
                            for names in (node.input, node.output))  # fmt: skip
            there = all(name in known for name in node.output if name)
            if not (takes or gives) or not there or node.op_type in _CONVERTS or any(_graphs_of(node)):
                nodes.append(node)
                continue
            before = {name: self._in_float32(name, nodes) for name in takes}
            node.input[:] = [before.get(name, name) for name in node.input]
            after = {name: f"{name}__float32_made" for name in gives}
            node.output[:] = [after.get(name, name) for name in node.output]
            nodes.append(node)
            for name, wide in after.items():
                self._note_float32(wide)
                nodes.append(_cast(wide, name, self.kinds[name]))
                self.given[node.name] = self.kinds[name]
        del graph.node[:]
        graph.node.extend(nodes)
        self._drop_unused()

    def widen_ends(self) -> None:
        """Make the graph's inputs and outputs float32; within it they are what they were."""
        graph = self.model.graph
        first, last = [], []
        inputs = {one.name for one in graph.input}
        for one in graph.input:
            if one.name in self.kinds and one.name not in self._constants:
                short = f"{one.name}__short"
                _rename(graph, one.name, short)
                first.append(_cast(one.name, short, self.kinds[one.name]))
                one.type.tensor_type.elem_type = element_type(torch.float32)
        for one in graph.output:
            if one.name not in self.kinds or one.name in self._constants:
                continue
            if one.name not in inputs:
                short = f"{one.name}__short"
                _rename(graph, one.name, short)
                last.append(_cast(short, one.name, torch.float32))
            one.type.tensor_type.elem_type = element_type(torch.float32)
        nodes = [*first, *graph.node, *last]
        del graph.node[:]
        graph.node.extend(nodes)
        known = [one for one in graph.value_info if one.name not in self.kinds]
        del graph.value_info[:]
        graph.value_info.extend(known)

    def _known_values(self) -> set[str]:
        return {name for name, kind in value_kinds(self.model).items() if kind}

    def _is_short(self, name: str) -> bool:
        return self.kinds.get(name) in _SHORT

    def _in_float32(self, name: str, nodes: list[Any]) -> str:
        """The name of a value in float32, whose Cast is made when it is needed first."""
        from onnx import numpy_helper

        if name not in self._wide:
            wide = self._wide[name] = f"{name}__float32"
            if name in self._constants:
                array = numpy_helper.to_array(self._constants[name]).astype("float32")
                self.model.graph.initializer.append(numpy_helper.from_array(array, wide))
            else:
                nodes.append(_cast(name, wide, torch.float32))
                self._note_float32(wide)
        return self._wide[name]

    def _note_float32(self, name: str) -> None:
        """A model may be larger than what shapes are inferred of."""
        from onnx import helper

        info = helper.make_tensor_value_info(name, element_type(torch.float32), None)
        self.model.graph.value_info.append(info)

    def _drop_unused(self) -> None:
        """Constants of which the form in float32 alone is used."""
        graph = self.model.graph
        used = {name for node in _nodes_below(graph) for name in node.input} | {one.name for one in graph.output}
        kept = [one for one in graph.initializer if one.name in used or one.name not in self._wide]
        del graph.initializer[:]
        graph.initializer.extend(kept)


def _cast(name: str, made: str, dtype: torch.dtype) -> Any:
    from onnx import helper

    return helper.make_node("Cast", [name], [made], name=f"{name}__to__{made}", to=element_type(dtype))


def _graphs_of(node: Any) -> Iterator[Any]:
    """The graphs that a node holds."""
    for one in node.attribute:
        yield from ([one.g] if one.HasField("g") else one.graphs)


def _nodes_below(graph: Any) -> Iterator[Any]:
    """The nodes of a graph and of those that they hold."""
    for node in graph.node:
        yield node
        for held in _graphs_of(node):
            yield from _nodes_below(held)


def _rename(graph: Any, name: str, other: str) -> None:
    """Rename a value of the graph, also where a graph below takes it; its own inputs and outputs keep their names."""
    for node in _nodes_below(graph):
        node.input[:] = [other if one == name else one for one in node.input]
        node.output[:] = [other if one == name else one for one in node.output]
    for node in _nodes_below(graph):
        for held in _graphs_of(node):
            for one in held.output:
                one.name = other if one.name == name else one.name

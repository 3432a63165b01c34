"""An ONNX file as steps, which ONNX Runtime runs one by one or several in a row."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from exportdoctor.worker.numbers.file_weights import FileWeights, read_graph
from exportdoctor.worker.numbers.node_sessions import NodeSessions
from exportdoctor.worker.numbers.step_graph import (
    Effect,
    GraphStep,
    StepGraph,
    UnrunnableStep,
    lowest_of,
    to_float64,
)
from exportdoctor.worker.translate.failed_node import onnx_fact
from exportdoctor.worker.translate.onnx_session import FLOATS_OF_8_BITS, torch_dtypes

_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_LISTS = frozenset({"SplitToSequence", "SequenceAt", "SequenceConstruct", "ConcatFromSequence"})
"""Operators on lists of tensors, which are computed here: a session gives tensors only."""


def onnx_steps(path: Path) -> StepGraph:
    """The steps of a file, functions inlined. Raises what onnx raises where it is none."""
    from onnx import inliner

    model, places = read_graph(path)
    if model.functions:
        model = inliner.inline_local_functions(model)
    graph = model.graph
    held = {one.name: one for one in graph.initializer}
    in_file = {name: one for name, one in held.items() if name in places}
    known = {name: tensor for name, one in held.items() if name not in places and (tensor := _tensor(one)) is not None}
    embedded = {name: one for name, one in held.items() if name not in places and name not in known}
    made = NodeSessions(model, embedded)
    steps = []
    short = _short_values(graph)
    for node in graph.node:
        if node.op_type == "Constant" and (value := _constant(node)) is not None:
            known[node.output[0]] = value
        else:
            steps.append(_step(node, made, known, short))
    return StepGraph(
        steps=steps,
        constants=FileWeights(known, in_file, places),
        inputs=tuple(one.name for one in graph.input if one.name not in held),
        outputs=tuple(one.name for one in graph.output),
        weights={name: name for name in held},
        join=made.run_joined,
    )


_NO_FLOATS = frozenset({"Shape", "Size", "ArgMax", "ArgMin", "NonZero", "Equal", "Less", "LessOrEqual", "Greater",
                        "GreaterOrEqual", "Not", "And", "Or", "IsNaN", "IsInf"})  # fmt: skip
"""Operators that give whole numbers or truth values, whatever they take."""


def _short_values(graph: Any) -> dict[str, torch.dtype]:
    """The values in a floating-point dtype of fewer than 32 bits: as the file declares them, as a Cast gives them, and
    what is computed from such values."""
    found: dict[str, torch.dtype] = {}

    def note(name: str, kind: int) -> None:
        dtype = torch_dtypes().get(kind)
        if dtype is not None and dtype.is_floating_point and dtype.itemsize < 4:
            found[name] = dtype

    for one in graph.initializer:
        note(one.name, one.data_type)
    for one in graph.input:
        note(one.name, one.type.tensor_type.elem_type)
    for node in graph.node:
        attributes = {one.name: one for one in node.attribute}
        if node.op_type == "Cast":
            note(node.output[0], attributes["to"].i)
        elif node.op_type == "Constant" and "value" in attributes:
            note(node.output[0], attributes["value"].t.data_type)
        elif node.op_type not in _NO_FLOATS:
            dtype = lowest_of(found.get(name) for name in node.input)
            found.update(dict.fromkeys(filter(None, node.output), dtype) if dtype is not None else {})
    return found


def _constant(node: Any) -> torch.Tensor | None:
    values = {one.name: one for one in node.attribute}
    return _tensor(values["value"].t) if "value" in values else None


def _tensor(proto: Any) -> torch.Tensor | None:
    """The tensor, which nobody may write to; None where torch has no such dtype."""
    from onnx import numpy_helper

    dtype = torch_dtypes().get(proto.data_type)
    if dtype is None:
        return None
    array = numpy_helper.to_array(proto)
    if dtype == torch.bfloat16 or dtype in FLOATS_OF_8_BITS:  # numpy itself has none
        return torch.from_numpy(array.view(f"int{8 * dtype.itemsize}").copy()).view(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an array that is read-only
        return torch.from_numpy(array)


def _step(
    node: Any, made: NodeSessions, known: Mapping[str, torch.Tensor], short: Mapping[str, torch.dtype]
) -> GraphStep:
    inputs = tuple(dict.fromkeys((*filter(None, node.input), *_outer_names(node))))
    effect: Effect = "random" if node.op_type in _RANDOM or _drops(node, known) else "new"
    return GraphStep(
        name=node.name or node.output[0],
        op=node.op_type,
        inputs=tuple(name for name in inputs if name not in made.embedded),
        outputs=tuple(name or f"{node.name}[{place}]" for place, name in enumerate(node.output)),
        run=lambda values: _run(node, inputs, values, made),
        fact=functools.cache(lambda: onnx_fact(node)),
        run_in_float64=None if node.op_type == "Cast" else lambda values: _reference(node, made, values),
        effect=effect,
        axis=next((one.i for one in node.attribute if one.name == "axis"), -1 if node.op_type == "TopK" else 0),
        reads=lowest_of(short.get(name) for name in (*inputs, *node.output)),
        node=node if made.can_join(node) and effect == "new" and node.op_type not in _LISTS else None,
    )


def _drops(node: Any, known: Mapping[str, torch.Tensor]) -> bool:
    """Whether it is a dropout that drops something, as in training."""
    training = known.get(node.input[2]) if node.op_type == "Dropout" and len(node.input) > 2 else None
    return training is not None and bool(training)


def _run(node: Any, inputs: Sequence[str], values: Mapping[str, Any], made: NodeSessions) -> Sequence[Any]:
    """The outputs; those of operators on lists of tensors are computed here, for a session gives tensors only."""
    given: list[Any] = [values.get(name) for name in node.input]
    noted = {one.name: one.i for one in node.attribute}
    match node.op_type:
        case "SplitToSequence":
            axis = noted.get("axis", 0)
            if len(given) < 2:
                parts = given[0].split(1, axis)
                return ([one if noted.get("keepdims", 1) else one.squeeze(axis) for one in parts],)
            return (list(given[0].split(given[1].tolist(), axis)),)
        case "SequenceAt":
            return (given[0][int(given[1])],)
        case "SequenceConstruct":
            return (given,)
        case "ConcatFromSequence":
            join = torch.stack if noted.get("new_axis", 0) else torch.cat
            return (join(given[0], noted["axis"]),)
    if any(isinstance(one, list) for one in given):
        raise UnrunnableStep(f"{node.name or node.op_type} takes a list of tensors")
    return made.run(node, inputs, values)


def _outer_names(node: Any) -> Iterator[str]:
    """The values that a node's subgraphs take from around them."""
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inside = {one.name for one in (*graph.input, *graph.initializer)}
            for one in graph.node:
                yield from (name for name in (*one.input, *_outer_names(one)) if name and name not in inside)
                inside.update(one.output)
            yield from (one.name for one in graph.output if one.name not in inside)


def _reference(node: Any, made: NodeSessions, values: Mapping[str, Any]) -> Any:
    """What onnx's reference implementation gives in float64. Raises where it has none, or several outputs."""
    from onnx.reference import ReferenceEvaluator

    (_,) = node.output
    high = {name: to_float64(value) for name, value in values.items()}
    model = made.model_of(node, {name: name for name in high}, high)
    given = {name: value.numpy() for name, value in high.items()}
    found: Any = ReferenceEvaluator(model).run(None, given)
    return torch.as_tensor(found[0])

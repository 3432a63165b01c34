"""An ONNX file as steps: each node is run by ONNX Runtime in a session of its own, which equal nodes share."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from exportdoctor.worker.numbers.step_graph import Effect, GraphStep, StepGraph, UnrunnableStep, to_float64
from exportdoctor.worker.translate.failed_node import onnx_fact
from exportdoctor.worker.translate.onnx_session import OnnxSession, torch_dtypes

_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_SMALL = 64
"""Constants of so few elements are written into a node's session: some operators take no others."""


def onnx_steps(path: Path) -> StepGraph:
    """The steps of a file, functions inlined. Raises what onnx raises where it is none."""
    import onnx
    from onnx import inliner

    model = onnx.load(str(path))
    if model.functions:
        model = inliner.inline_local_functions(model)
    graph = model.graph
    made = _Sessions(model)
    held = {one.name: one for one in graph.initializer}
    constants = {name: tensor for name, one in held.items() if (tensor := _tensor(one)) is not None}
    made.embedded = {name: one for name, one in held.items() if name not in constants}
    steps = []
    for node in graph.node:
        if node.op_type == "Constant" and (value := _constant(node)) is not None:
            constants[node.output[0]] = value
        else:
            alone = onnx.NodeProto()
            alone.CopyFrom(node)  # one that is part of the file would keep all of it in memory
            steps.append(_step(alone, made))
    return StepGraph(
        steps=steps,
        constants=constants,
        inputs=tuple(one.name for one in graph.input if one.name not in held),
        outputs=tuple(one.name for one in graph.output),
        weights={name: name for name in held},
    )


def _constant(node: Any) -> torch.Tensor | None:
    values = {one.name: one for one in node.attribute}
    return _tensor(values["value"].t) if "value" in values else None


def _tensor(proto: Any) -> torch.Tensor | None:
    """The tensor, which nobody may write to; None where torch has no such dtype."""
    from onnx import TensorProto, numpy_helper

    if proto.data_type not in torch_dtypes():
        return None
    array = numpy_helper.to_array(proto)
    if proto.data_type == TensorProto.BFLOAT16:
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an array that is read-only
        return torch.from_numpy(array)


def _step(node: Any, made: _Sessions) -> GraphStep:
    inputs = tuple(dict.fromkeys((*filter(None, node.input), *_outer_names(node))))
    effect: Effect = "random" if node.op_type in _RANDOM else "new"
    return GraphStep(
        name=node.name or node.output[0],
        op=node.op_type,
        inputs=tuple(name for name in inputs if name not in made.embedded),
        outputs=tuple(name or f"{node.name}[{place}]" for place, name in enumerate(node.output)),
        run=lambda values: _run(node, inputs, values, made),
        fact=functools.cache(lambda: onnx_fact(node)),
        run_in_float64=None if node.op_type == "Cast" else lambda values: _reference(node, made, values),
        effect=effect,
    )


def _run(node: Any, inputs: Sequence[str], values: Mapping[str, Any], made: _Sessions) -> Sequence[Any]:
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


def _reference(node: Any, made: _Sessions, values: Mapping[str, Any]) -> Any:
    """What onnx's reference implementation gives in float64. Raises where it has none, or several outputs."""
    from onnx.reference import ReferenceEvaluator

    (_,) = node.output
    high = {name: to_float64(value) for name, value in values.items()}
    model = made.model_of(node, {name: name for name in high}, high)
    given = {name: value.numpy() for name, value in high.items()}
    found: Any = ReferenceEvaluator(model).run(None, given)
    return torch.as_tensor(found[0])


class _Sessions:
    """Sessions of single nodes, shared by nodes that are equal but for the names of values."""

    def __init__(self, model: Any) -> None:
        self.embedded: dict[str, Any] = {}
        self._opsets = {one.domain: one.version for one in model.opset_import}
        self._version = model.ir_version
        self._made: dict[tuple[object, ...], OnnxSession] = {}
        self._asked: dict[tuple[object, ...], OnnxSession] = {}

    def run(self, node: Any, inputs: Sequence[str], values: Mapping[str, Any]) -> list[torch.Tensor]:
        """The outputs, empty those without a name. Raises UnrunnableStep where the node cannot stand alone."""
        has_graphs = any(one.HasField("g") or one.graphs for one in node.attribute)  # they use the names
        names = {name: name if has_graphs else f"i{place}" for place, name in enumerate(inputs)}
        try:
            session = self._session(node, names, values)
        except Exception as error:
            raise UnrunnableStep(f"{node.name or node.op_type}: {error}") from error
        if any(not one.startswith("tensor") for one in session.output_types):
            raise UnrunnableStep(f"{node.name or node.op_type} gives what is no tensor")
        given = {names[name]: value for name, value in values.items() if name in names}
        found = iter(session.run_named(given, copy=False))
        return [next(found) if name else torch.empty(0) for name in node.output]

    def _session(self, node: Any, names: Mapping[str, str], values: Mapping[str, Any]) -> OnnxSession:
        asked = (id(node), *(value.dtype for value in values.values()))
        if asked in self._asked:
            return self._asked[asked]
        key = (
            node.domain, node.op_type, node.overload, *(one.SerializeToString() for one in node.attribute),
            *(names.get(name, "") for name in node.input), *map(bool, node.output),
            *((names[name], value.dtype) for name, value in values.items()),
            *(self.embedded[name].SerializeToString() for name in names if name in self.embedded),
        )  # fmt: skip
        if key not in self._made:
            try:
                alone = self.model_of(node, names, values)
                self._made[key] = OnnxSession(alone.SerializeToString(), optimise=False)
            except Exception:  # some operators take some inputs as constants only
                few = {name: value for name, value in values.items() if value.numel() <= _SMALL}
                fixed = self.model_of(node, names, values, fixed=few)
                return OnnxSession(fixed.SerializeToString(), optimise=False)
        self._asked[asked] = self._made[key]
        return self._made[key]

    def model_of(
        self, node: Any, names: Mapping[str, str], values: Mapping[str, Any], fixed: Mapping[str, Any] | None = None
    ) -> Any:
        """A model of this node alone: its inputs renamed, of the dtypes of `values`; constants for those in `fixed`."""
        import onnx
        from onnx import helper, numpy_helper

        alone = onnx.NodeProto()
        alone.CopyFrom(node)
        alone.name, alone.doc_string = "", ""
        del alone.metadata_props[:]
        alone.input[:] = [names.get(name, "") for name in node.input]
        alone.output[:] = [f"o{place}" if name else "" for place, name in enumerate(node.output)]
        kinds = {dtype: number for number, dtype in torch_dtypes().items()}
        constants = [numpy_helper.from_array(value.numpy(), names[name]) for name, value in (fixed or {}).items()]
        for name in names.keys() & self.embedded.keys():
            one = onnx.TensorProto()
            one.CopyFrom(self.embedded[name])
            one.name = names[name]
            constants.append(one)
        taken = [name for name in names if name in values and name not in (fixed or {})]
        inputs = [helper.make_tensor_value_info(names[name], kinds[values[name].dtype], None) for name in taken]
        outputs = [helper.make_empty_tensor_value_info(name) for name in alone.output if name]
        graph = helper.make_graph([alone], "step", inputs, outputs, initializer=constants)
        opsets = [helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=self._version)

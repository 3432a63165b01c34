"""One session in which each layer can be lowered or not, by an input of truth values.

Every value that a layer takes, and what it gives, goes through `Where(lowered, value as the quantiser would have it,
value)`. The products are computed in float32; what integer kernels add to that is seen when the file that the quantiser
itself makes is run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.sensitivity import Lowering
from exportdoctor.report.wording import sensitivities as wording
from exportdoctor.worker.sensitivity.layers import GraphLayer, can_be_lowered, find_layers, lowered_values
from exportdoctor.worker.sensitivity.quantisers import Feed, LoweredValues, save_model
from exportdoctor.worker.sensitivity.short_floats import value_kinds

_FLAGS = "exportdoctor_lowered"


@dataclass(kw_only=True)
class SwitchedModel:
    """A model whose layers can be lowered. `outputs` are its float outputs, `local` those of each layer by its name."""

    layers: list[GraphLayer]
    outputs: list[str]
    local: dict[str, list[str]]
    session: Any
    runs: int = 0

    def run(self, feed: Feed, lowered: Collection[str], names: Sequence[str] = ()) -> list[Any]:
        """The outputs, or the values `names`, with these layers lowered."""
        import numpy

        flags = numpy.array([layer.name in lowered for layer in self.layers])
        self.runs += 1
        found: list[Any] = self.session.run(list(names) or self.outputs, {**feed, _FLAGS: flags})
        return found


def load_graph(path: Path) -> Any:
    """The model with functions inlined, every node with a name. Raises UsageError where it is none."""
    import onnx
    from onnx import inliner

    try:
        model = onnx.load(str(path))
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded: {type(error).__name__}") from error
    if model.functions:
        model = inliner.inline_local_functions(model)
    for place, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{place}"
    return model


def switch_layers(
    model: Any,
    to: Lowering,
    values: LoweredValues,
    folder: Path,
    *,
    prefix: str = "",
    program: Any = None,
    already: Collection[str] = (),
) -> SwitchedModel:
    """The model with a switch for each layer; `program` is what it was made of, `already` the nodes that are of this
    precision. Raises UsageError where nothing can be lowered, TargetError where ONNX Runtime does not load it."""
    import onnxruntime as ort
    from onnx import TensorProto, helper

    kinds = value_kinds(model)
    floats = {name: kind == TensorProto.FLOAT for name, kind in kinds.items()}
    layers = find_layers(model.graph, to, floats, prefix=prefix, program=program, without=already)
    if not layers:
        raise _nothing_to_lower(model.graph, to, kinds, already)
    places = {node.name: number for number, layer in enumerate(layers) for node in layer.nodes}
    maker = _SwitchMaker(model=model, to=to, values=values)
    nodes = []
    for node in model.graph.node:
        number = places.get(node.name)
        if number is None:
            nodes.append(node)
            continue
        flag = maker.flag(number)
        for name in lowered_values(node, floats):
            switched = maker.switch(name, flag, number)
            node.input[:] = [switched if one == name else one for one in node.input]
        outputs = [name for name in node.output if floats.get(name, False) and maker.can_lower(name)]
        kept = {name: f"{name}__exact" for name in outputs}
        node.output[:] = [kept.get(name, name) for name in node.output]
        nodes += maker.take()
        nodes.append(node)
        for name in outputs:
            maker.switch(kept[name], flag, number, like=name, output=name)
        nodes += maker.take()
    shown = {layer.name: [name for node in layer.nodes for name in _given_value(node)] for layer in layers}
    first = [one.name for one in model.graph.output if floats.get(one.name, False)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.input.append(helper.make_tensor_value_info(_FLAGS, TensorProto.BOOL, [len(layers)]))
    there = {one.name for one in model.graph.output}
    wanted = [name for names in shown.values() for name in names if name not in there]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted)
    del model.graph.value_info[:]
    path = folder / "switched.onnx"
    save_model(model, path)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = max(1, torch.get_num_threads())
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise TargetError(wording.not_loaded(f"{type(error).__name__}: {first_line(error, 200)}")) from error
    return SwitchedModel(layers=layers, outputs=first, local=shown, session=session)


def refuse_other_dtypes(model: Any, to: Lowering, already: Collection[str]) -> None:
    """Raise UsageError where a model has nothing of this precision to lower: a quantiser may fail over that first."""
    from onnx import TensorProto

    kinds = value_kinds(model)
    floats = {name: kind == TensorProto.FLOAT for name, kind in kinds.items()}
    if not find_layers(model.graph, to, floats, without=already):
        raise _nothing_to_lower(model.graph, to, kinds, already)


def _nothing_to_lower(graph: Any, to: Lowering, kinds: Mapping[str, int], already: Collection[str]) -> UsageError:
    """What stands in the way, and what to do."""
    from onnx import TensorProto

    if already:
        return UsageError(wording.already_lowered(to), hint=wording.ALREADY_LOWERED_HINT)
    if to == "w4a16" and any(node.op_type == "Gemm" for node in graph.node):
        return UsageError(wording.GEMM_ALONE, hint=wording.GEMM_ALONE_HINT)
    constants = {one.name for one in graph.initializer}
    doubles = {name: kind == TensorProto.DOUBLE for name, kind in kinds.items()}
    if any(can_be_lowered(node, to, doubles, constants) for node in graph.node):
        return UsageError(wording.other_dtype("float64"), hint=wording.IN_FLOAT32_HINT)
    return UsageError(wording.nothing_to_lower(to))


def _given_value(node: Any) -> list[str]:
    """What a node gives, after its switch."""
    return [name.removesuffix("__exact") for name in node.output if name][:1]


@dataclass(kw_only=True)
class _SwitchMaker:
    """Makes the nodes of switches."""

    model: Any
    to: Lowering
    values: LoweredValues
    _made: list[Any] = field(default_factory=list)
    _lowered: dict[str, str] = field(default_factory=dict)
    _flags: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._constants = {one.name: one for one in self.model.graph.initializer}

    def take(self) -> list[Any]:
        """The nodes that were made since the last time."""
        made, self._made = self._made, []
        return made

    def flag(self, number: int) -> str:
        """The truth value of a layer."""
        name = f"{_FLAGS}_{number}"
        if number not in self._flags:
            self._flags[number] = name
            index = self._constant(f"{name}_place", _array(number))
            self._add("Gather", [_FLAGS, index], name)
        return name

    def can_lower(self, name: str) -> bool:
        """Whether a value has another form when it is lowered."""
        bits = self.to in ("fp16", "bf16")
        return bits or name in self.values.scales or name in self.values.weights

    def switch(self, name: str, flag: str, number: int, *, like: str = "", output: str = "") -> str:
        """The name of a value that is lowered if the flag says so; `like` is the one whose form it takes."""
        if not self.can_lower(like or name):
            return name
        lowered = self._lowered_form(name, like or name)
        made = output or f"{name}__{number}"
        if made not in self._lowered:
            self._lowered[made] = made
            self._add("Where", [flag, lowered, name], made)
        return made

    def _lowered_form(self, name: str, like: str) -> str:
        made = f"{name}__lowered"
        if made in self._lowered:
            return made
        self._lowered[made] = made
        if like in self.values.weights:
            self._constant(made, self.values.weights[like].astype("float32"))
        elif like in self.values.scales:
            scale, zero = (self._constant(f"{made}_{place}", one) for place, one in enumerate(self.values.scales[like]))
            self._add("QuantizeLinear", [name, scale, zero], f"{made}_whole")
            self._add("DequantizeLinear", [f"{made}_whole", scale, zero], made)
        else:
            from onnx import TensorProto

            kind = TensorProto.FLOAT16 if self.to == "fp16" else TensorProto.BFLOAT16
            self._add("Cast", [name], f"{made}_short", to=kind)
            self._add("Cast", [f"{made}_short"], made, to=TensorProto.FLOAT)
        return made

    def _add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> None:
        from onnx import helper

        self._made.append(helper.make_node(op, inputs, [output], name=f"{output}_{op}", **attributes))

    def _constant(self, name: str, value: Any) -> str:
        from onnx import numpy_helper

        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(value, name)
            self.model.graph.initializer.append(self._constants[name])
        return name


def _array(number: int) -> Any:
    import numpy

    return numpy.array(number, dtype=numpy.int64)

"""What existing quantisers make of a file: ONNX Runtime's static quantisation, MatMulNBits, and casts to 16 bits.

`int8` and `w8a8` are `quantize_static` in its QDQ form, `w4a16` is `MatMulNBitsQuantizer`. Their scales and weights are
read out of the files that they write, so that single layers can be lowered without quantising anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from exportdoctor.core.protocol.sensitivity import Lowering
from exportdoctor.report.wording import sensitivities as wording
from exportdoctor.worker.sensitivity.layers import WEIGHTED

Feed = Mapping[str, Any]
"""The inputs of a file by name, as numpy arrays."""


_OF_OUTPUT = "_QuantizeLinear_Input"
"""What quantize_static adds to the name of an output of the graph before it quantises it."""

_RENAMED = "_matmul_Q4"
"""What MatMulNBitsQuantizer adds to a node's name in its QDQ form."""


@dataclass(kw_only=True)
class LoweredValues:
    """For a value's name: the scale and zero point (arrays) of an activation; the numbers that a weight has then."""

    scales: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)


def write_lowered(
    model: Path, to: Lowering, calibration: Sequence[Feed], output: Path, *, exclude: Sequence[str] = ()
) -> bool:
    """Write the file that the quantiser makes, without the nodes `exclude`. False where there is no quantiser."""
    import onnx

    with quiet_quantiser():
        if to in ("int8", "w8a8"):
            _quantise_statically(model, to, calibration, output, exclude)
        elif to == "w4a16":
            made = _nbits(onnx.load(str(model)), exclude, qdq=False)
            save_model(made, output)
        elif to == "fp16":
            from onnxruntime.transformers.float16 import convert_float_to_float16

            loaded = onnx.load(str(model))
            made = convert_float_to_float16(loaded, keep_io_types=True, node_block_list=list(exclude))
            save_model(made, output)
        else:
            return False
    return True


def without_round_trips(path: Path, output: Path) -> int:
    """Write the file with values of kept nodes left in float32 up to where they are used in float32, and say how many
    such values there are. `convert_float_to_float16` casts each to float16 and back, so that no list protects it."""
    import onnx
    from onnx import TensorProto

    model = onnx.load(str(path))
    casts = {node.output[0]: node for node in model.graph.node if node.op_type == "Cast"}
    targets = {name: next(one.i for one in node.attribute if one.name == "to") for name, node in casts.items()}
    kept: set[str] = set()
    for name, node in casts.items():
        short = node.input[0]
        if targets[name] == TensorProto.FLOAT and targets.get(short) == TensorProto.FLOAT16:
            value = casts[short].input[0]
            kept.add(value)
            node.CopyFrom(onnx.helper.make_node("Identity", [value], [name], name=node.name))
    save_model(model, output)
    return len(kept)


def read_lowered(model: Path, to: Lowering, calibration: Sequence[Feed], folder: Path) -> LoweredValues:
    """The scales and weights of a file in which everything is lowered."""
    import onnx
    from onnx import numpy_helper

    found = LoweredValues()
    if to in ("fp16", "bf16"):
        return found
    path = folder / "lowered.onnx"
    with quiet_quantiser():
        if to == "w4a16":
            made = _nbits(onnx.load(str(model)), (), qdq=True)
        else:
            _quantise_statically(model, to, calibration, path, ())
            made = onnx.load(str(path))
    constants = {one.name: one for one in made.graph.initializer}
    producers = {name: node for node in made.graph.node for name in node.output}
    read = lambda name: numpy_helper.to_array(constants[name])  # noqa: E731
    originals = {node.name: node for node in onnx.load(str(model), load_external_data=False).graph.node}
    for node in made.graph.node:
        before = originals.get(node.name.removesuffix(_RENAMED))
        if before is None or node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        for name, old in zip(node.input, before.input, strict=False):
            source = producers.get(name)
            if source is None or source.op_type != "DequantizeLinear":
                continue
            if source.input[0] in constants:
                found.weights[old] = _dequantise(source, read)
            else:
                found.scales[old] = (read(source.input[1]), read(source.input[2]))
    for node in made.graph.node:  # outputs: a QuantizeLinear takes what a node gives
        if node.op_type == "QuantizeLinear" and node.input[0] in producers:
            name = node.input[0].removesuffix(_OF_OUTPUT)
            found.scales.setdefault(name, (read(node.input[1]), read(node.input[2])))
    return found


def _dequantise(node: Any, read: Callable[[str], Any]) -> Any:
    """The numbers of a constant behind a DequantizeLinear: of a tensor, of channels, or of blocks along an axis."""
    import numpy

    values, scale, *rest = [read(name) for name in node.input if name]
    attributes = {one.name: one.i for one in node.attribute}
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    zero = rest[0].astype(numpy.float32) if rest else numpy.zeros_like(scale)

    def spread(one: Any) -> Any:
        if block:
            return numpy.take(numpy.repeat(one, block, axis), range(values.shape[axis]), axis)
        if one.ndim == 1:
            return one.reshape([-1 if at == axis % values.ndim else 1 for at in range(values.ndim)])
        return one

    return (values.astype(numpy.float32) - spread(zero)) * spread(scale)


def _quantise_statically(
    model: Path, to: Lowering, calibration: Sequence[Feed], output: Path, exclude: Sequence[str]
) -> None:
    from onnxruntime.quantization import quantize_static

    quantize_static(
        str(model),
        str(output),
        _Reader(calibration),
        nodes_to_exclude=list(exclude),
        use_external_data_format=_is_large(model),
        **_arguments(to),
    )


def _arguments(to: Lowering) -> dict[str, Any]:
    """How `quantize_static` is called for this lowering."""
    from onnxruntime.quantization import QuantFormat, QuantType

    fine = to == "w8a8"
    return {
        "quant_format": QuantFormat.QDQ,
        "op_types_to_quantize": list(WEIGHTED[to]),
        "per_channel": fine,
        "activation_type": QuantType.QInt8 if fine else QuantType.QUInt8,
        "weight_type": QuantType.QInt8,
        "extra_options": {"ActivationSymmetric": fine, "WeightSymmetric": True},
    }


def static_call(model: Path, to: Lowering) -> str:
    """How `quantize_static` was called, as code, and which operators of the file it would lower in addition, if it
    were not told which; empty for what it does not make."""
    import onnx
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    if to not in ("int8", "w8a8"):
        return ""
    graph = onnx.load(str(model), load_external_data=False).graph
    others = ({node.op_type for node in graph.node} & {*QLinearOpsRegistry, *QDQRegistry}) - {*WEIGHTED[to]}
    given = (f"{name}={value if isinstance(value, Enum) else repr(value)}" for name, value in _arguments(to).items())
    return wording.static_call(f"quantize_static(…, {', '.join(given)})", sorted(others))


def products_saturate(to: Lowering) -> bool:
    """Whether ONNX Runtime adds products of this lowering's integers wrongly on this processor.

    x86 processors without VNNI add two products of uint8 and int8 in 16 bits. One product of the largest numbers is
    asked, in a file as the quantiser makes it: where its activations are int8, ONNX Runtime makes them uint8.
    """
    import numpy
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    if to not in ("int8", "w8a8"):
        return False
    kind, most = (numpy.uint8, 255) if to == "int8" else (numpy.int8, 127)
    values = {
        "one": numpy.float32(1), "zero": kind(0), "none": numpy.int8(0), "thousand": numpy.float32(1000),
        "weight": numpy.full((6, 16), 127, numpy.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["given", "one", "zero"], ["numbers"]),
        helper.make_node("DequantizeLinear", ["numbers", "one", "zero"], ["rows"]),
        helper.make_node("DequantizeLinear", ["weight", "one", "none"], ["columns"]),
        helper.make_node("MatMul", ["rows", "columns"], ["sums"]),
        helper.make_node("QuantizeLinear", ["sums", "thousand", "zero"], ["thousands"]),
        helper.make_node("DequantizeLinear", ["thousands", "thousand", "zero"], ["made"]),
    ]
    given = helper.make_tensor_value_info("given", TensorProto.FLOAT, [1, 6])
    made = helper.make_tensor_value_info("made", TensorProto.FLOAT, [1, 16])
    known = [numpy_helper.from_array(numpy.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "products", [given], [made], known)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    [sums] = session.run(None, {"given": numpy.full((1, 6), most, numpy.float32)})
    return bool((abs(sums - 6 * most * 127) > 1000).any())


def _nbits(model: Any, exclude: Sequence[str], *, qdq: bool) -> Any:
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    form = QuantFormat.QDQ if qdq else QuantFormat.QOperator
    config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=True, accuracy_level=0, quant_format=form)
    quantiser = MatMulNBitsQuantizer(model, nodes_to_exclude=list(exclude), algo_config=config, quant_format=form)
    quantiser.process()
    return quantiser.model.model


class _Reader:
    """Calibration sets, as `quantize_static` takes them."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = feeds
        self.rewind()

    def get_next(self) -> Feed | None:
        """The next set, None at the end."""
        return next(self._rest, None)

    def rewind(self) -> None:
        """Begin again."""
        self._rest = iter([dict(one) for one in self._feeds])

    def __len__(self) -> int:
        return len(self._feeds)


def _is_large(model: Path) -> bool:
    return sum(one.stat().st_size for one in model.parent.glob(f"{model.name}*")) > 2**30


def save_model(model: Any, output: Path) -> None:
    """Save it; weights go beside the file where they are much of what a protobuf message may hold, and out of `model`.

    The size of a whole model of more than 2 GiB is no number that protobuf tells.
    """
    import onnx

    large = sum(one.ByteSize() for one in model.graph.initializer) > 2**30
    onnx.save(model, str(output), save_as_external_data=large, location=f"{output.name}.data")


@contextmanager
def quiet_quantiser() -> Iterator[None]:
    """Silences the advice that ONNX Runtime's quantisers log."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)

"""For which values an ONNX file gives something else in ONNX Runtime on the CPU than torch does.

Releases of ONNX Runtime differ, so each operator that a file has is asked by a model of that operator alone: with NaN,
and with whole numbers that need more than 31 or 53 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from exportdoctor.report.wording import export as wording
from exportdoctor.torch_internals.graph_modules import program_nodes
from exportdoctor.worker.translate.failed_node import fx_fact, user_frame
from exportdoctor.worker.translate.onnx_session import element_type, runtime_package


@dataclass(frozen=True, kw_only=True)
class _Operator:
    """What an operator computes, in torch, of a tensor (rows, columns), with a dimension of one before these where
    `rank` is 3. `more` are its other inputs: int64 where they are a tuple, else numbers of the first one's dtype.
    Its first output of `outputs` is compared."""

    computes: Callable[[torch.Tensor], torch.Tensor]
    more: tuple[Any, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    rank: int = 2


_OPERATORS = {
    "ReduceMax": _Operator(computes=lambda x: x.amax(1), more=((1,),), attributes={"keepdims": 0}),
    "ReduceMin": _Operator(computes=lambda x: x.amin(1), more=((1,),), attributes={"keepdims": 0}),
    "ReduceSum": _Operator(computes=lambda x: x.sum(1), more=((1,),), attributes={"keepdims": 0}),
    "ReduceProd": _Operator(computes=lambda x: x.prod(1), more=((1,),), attributes={"keepdims": 0}),
    "ArgMax": _Operator(computes=lambda x: x.argmax(1), attributes={"axis": 1, "keepdims": 0}),
    "ArgMin": _Operator(computes=lambda x: x.argmin(1), attributes={"axis": 1, "keepdims": 0}),
    "TopK": _Operator(computes=lambda x: x.topk(2, 1).values, more=((2,),), outputs=2),
    "MaxPool": _Operator(
        computes=lambda x: torch.nn.functional.max_pool1d(x, 2),
        attributes={"kernel_shape": [2], "strides": [2]},
        rank=3,
    ),
    "Max": _Operator(computes=lambda x: x.clamp(min=2), more=(2,)),
    "Min": _Operator(computes=lambda x: x.clamp(max=2), more=(2,)),
    "Clip": _Operator(computes=lambda x: x.clamp(0, 2**60), more=(0, 2**60)),
    "Sign": _Operator(computes=torch.sign),
}
_NAN = float("nan")
_WITH_NAN = ((1.0, _NAN, 6.0, 2.0), (_NAN, 0.0, 1.0, 3.0), (4.0, 5.0, 9.0, _NAN))
_WHOLE = {31: (2**31 + 1, 1, 1, 1), 53: (2**53 + 1, 2**31 + 1, 3, 1)}
"""By the number of bits that their values need more than."""
_BOUNDED = frozenset({"Shape", "Size", "Constant", "ArgMax", "ArgMin", "NonZero", "TopK"})
"""Operators whose whole numbers are sizes, places or constants."""
_OPSET = 18


def runtime_limits(model: Any) -> Iterator[str]:
    """What to say of a file by torch.onnx's model of it: nothing where ONNX Runtime does all as torch does."""
    floats: set[str] = set()
    whole: set[tuple[int, str]] = set()
    for node in model.graph.all_nodes():
        if node.domain not in ("", "ai.onnx") or node.op_type not in _OPERATORS or not node.inputs:
            continue
        first = node.inputs[0]
        kind = getattr(getattr(first, "dtype", None), "name", "")
        if kind == "FLOAT" and _gives_otherwise(node.op_type, 0):
            floats.add(node.op_type)
        if kind == "INT64" and not _is_bounded(first):
            bits = next((bits for bits in _WHOLE if _gives_otherwise(node.op_type, bits)), 0)
            whole.update({(bits, node.op_type)} if bits else ())
    if floats:
        yield wording.nan_in_runtime(sorted(floats), runtime_package())
    for bits in _WHOLE:
        if names := sorted(name for one, name in whole if one == bits):
            yield wording.whole_numbers_in_runtime(names, bits, runtime_package())


def rounded_fractions(program: Any) -> Iterator[str]:
    """What to say of whole numbers that an exported program rounds from fractions of Python, which have 64 bits there
    and 32 in its ONNX file, as `math.ceil(size * 1.1)`."""
    for node in program_nodes(program):
        parts = [one.meta.get("val") for one in node.all_input_nodes]
        if isinstance(node.meta.get("val"), torch.SymInt) and any(isinstance(one, torch.SymFloat) for one in parts):
            frame = user_frame(fx_fact(node))
            yield wording.rounded_fraction(f"{frame.file}:{frame.line}" if frame is not None else "")


@functools.cache
def _gives_otherwise(name: str, bits: int) -> bool:
    """Whether the operator gives something else than torch for NaN, or for whole numbers of more than so many bits."""
    operator = _OPERATORS[name]
    x = torch.tensor([_WHOLE[bits]]) if bits else torch.tensor(_WITH_NAN)
    x = x[(None,) * (operator.rank - x.dim())]
    try:
        found = _run(name, operator, x)
        return not torch.equal(_comparable(found), _comparable(operator.computes(x)))
    except Exception:  # it does not take that dtype: what ONNX Runtime raises has no class of its own
        return False


def _comparable(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values, nan=-77.0) if values.is_floating_point() else values


def _run(name: str, operator: _Operator, x: torch.Tensor) -> torch.Tensor:
    import onnxruntime as ort
    from onnx import helper, numpy_helper

    others = {
        f"c{place}": torch.tensor(one) if isinstance(one, tuple) else torch.tensor(one, dtype=x.dtype)
        for place, one in enumerate(operator.more)
    }
    outputs = [f"y{place}" for place in range(operator.outputs)]
    node = helper.make_node(name, ["x", *others], outputs, **operator.attributes)
    graph = helper.make_graph(
        [node],
        name,
        [helper.make_tensor_value_info("x", element_type(x.dtype), list(x.shape))],
        [helper.make_empty_tensor_value_info(outputs[0])],
        [numpy_helper.from_array(value.numpy(), name=key) for key, value in others.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run([outputs[0]], {"x": x.numpy()})[0])


def _is_bounded(value: Any) -> bool:
    """Whether whole numbers follow from sizes, places and constants alone."""
    left, seen = [value], set()
    while left:
        one = left.pop()
        if one is None or one in seen:
            continue
        seen.add(one)
        node = one.producer()
        if node is None:
            if one.const_value is None:
                return False
        elif node.op_type not in _BOUNDED and not _converts_flags(node):
            left += node.inputs
    return True


def _converts_flags(node: Any) -> bool:
    kind = getattr(getattr(node.inputs[0], "dtype", None), "name", "") if node.inputs else ""
    return bool(node.op_type == "Cast" and kind == "BOOL")

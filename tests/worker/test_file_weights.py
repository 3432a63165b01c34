"""A file's weights are what onnx reads, wherever they lie, and nodes in a row give what they give one by one."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from exportdoctor.worker.numbers.file_weights import read_graph
from exportdoctor.worker.numbers.onnx_steps import onnx_steps
from exportdoctor.worker.numbers.step_graph import stream_values

DTYPES = (numpy.float32, numpy.float64, numpy.float16, numpy.int64, numpy.int8, numpy.bool_)


def save(path: Path, *, external: bool) -> dict[str, Any]:
    """A file with weights of several dtypes and sizes, and what they are."""
    drawn = numpy.random.default_rng(3)
    arrays = {f"w{kind.__name__}{size}": (drawn.standard_normal((size, 7)) * 9).astype(kind)
              for kind in DTYPES for size in (0, 1, 700)}  # fmt: skip
    arrays["scale"] = drawn.standard_normal((7, 7)).astype(numpy.float32)
    nodes = [
        helper.make_node("MatMul", ["wfloat32700", "scale"], ["a"], name="n1"),
        helper.make_node("Add", ["a", "x"], ["b"], name="n2"),
        helper.make_node("Softmax", ["b"], ["c"], name="n3"),
        helper.make_node("Split", ["c"], ["f", "d"], name="n4", axis=0, num_outputs=2),
        helper.make_node("Mul", ["d", "d"], ["e"], name="n5"),
    ]
    kind = onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", kind, [700, 7])]
    outputs = [helper.make_tensor_value_info(name, kind, None) for name in ("b", "e")]
    weights = [numpy_helper.from_array(value, name) for name, value in arrays.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializer=weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(path), save_as_external_data=external, location="weights.bin", size_threshold=0)
    return arrays


@pytest.mark.parametrize("external", [False, True])
def test_weights_are_read_as_they_are(tmp_path: Path, external: bool) -> None:
    arrays = save(tmp_path / "m.onnx", external=external)
    model, places = read_graph(tmp_path / "m.onnx")
    assert {f"w{kind.__name__}700" for kind in DTYPES} <= places.keys()
    assert model.ByteSize() < 10_000
    weights = onnx_steps(tmp_path / "m.onnx").constants
    assert set(weights) == arrays.keys()
    for name, wanted in arrays.items():
        assert weights[name].numpy().dtype == wanted.dtype
        assert numpy.array_equal(weights[name].numpy(), wanted)
    assert weights.get("nowhere") is None


def test_a_file_that_ends_too_early_or_lies_elsewhere_is_told(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", external=True)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"weights\.bin ends before the weight"):
        _ = onnx_steps(tmp_path / "m.onnx").constants["wfloat32700"]
    model = onnx.load(str(tmp_path / "m.onnx"), load_external_data=False)
    for one in model.graph.initializer:
        for entry in one.external_data:
            entry.value = entry.value.replace("weights.bin", "../weights.bin")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="outside of the folder"):
        onnx_steps(tmp_path / "m.onnx")


def test_nodes_in_a_row_give_what_each_gives(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", external=False)
    graph = onnx_steps(tmp_path / "m.onnx")
    values: dict[str, Any] = {"x": torch.randn(700, 7), **graph.constants}
    given = {name: values[name] for name in ("x", "wfloat32700", "scale")}
    for step in graph.steps:
        values.update(zip(step.outputs, step.run({name: values[name] for name in step.inputs}), strict=True))
    assert graph.join is not None
    made = graph.join(graph.steps, ["b", "e"], given)
    assert torch.equal(made[0], values["b"])
    assert torch.equal(made[1], values["e"])


def test_the_values_that_are_asked_for_do_not_depend_on_which_others_are(tmp_path: Path) -> None:
    """Nodes between them run joined; whatever is asked for, the values and the outputs are those of single nodes."""
    save(tmp_path / "m.onnx", external=True)
    graph = onnx_steps(tmp_path / "m.onnx")
    given = {"x": torch.randn(700, 7)}
    alone: dict[str, torch.Tensor] = {}
    outputs = stream_values(graph, given, lambda name, value, *_: alone.update({name: value.clone()}))
    names = sorted(name for step in graph.steps for name in step.outputs)
    for chosen in (set(one) for count in range(len(names) + 1) for one in combinations(names, count)):
        told: dict[str, torch.Tensor] = {}
        made = stream_values(
            graph, given, lambda name, value, *_, told=told: told.update({name: value.clone()}), wanted=chosen
        )
        assert told.keys() == chosen
        assert all(torch.equal(value, alone[name]) for name, value in told.items())
        assert all(torch.equal(one, other) for one, other in zip(made, outputs, strict=True))

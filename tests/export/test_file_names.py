"""An ONNX file has the names of the program's inputs and of eager's outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from torch import Tensor
from torch.export import Dim

from exportdoctor.worker.translate.onnx_program import name_values, translate


class Passes(torch.nn.Module):
    """Returns an input as it is."""

    def forward(self, x: Tensor, prompt: Tensor) -> Any:
        return {"sum": torch.cat([prompt, x]).sum(0), "prompt": prompt}


def test_an_input_that_is_an_output_keeps_its_name() -> None:
    """onnxscript's optimizer called it `prompt_orig`, and its size by torch's symbol."""
    shapes = {"x": {0: Dim.DYNAMIC}, "prompt": {0: Dim.DYNAMIC}}
    with torch.no_grad():
        program = torch.export.export(Passes(), (torch.randn(3, 4), torch.randn(2, 4)), dynamic_shapes=shapes)
        made = translate(program).made
    name_values(made, program, {"rows": ("x[0]",), "prompts": ("prompt[0]",)})
    assert [value.name for value in made.model.graph.inputs] == ["x", "prompt"]
    assert [str(value.shape[0]) for value in made.model.graph.inputs] == ["rows", "prompts"]
    assert len({value.name for value in (*made.model.graph.inputs, *made.model.graph.outputs)}) == 4


class NamesOfItsGraph(torch.nn.Module):
    """Gives names to its outputs that its inputs, operators, parameters and other outputs have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, past_state: Tensor, flags: dict[str, dict[str, Tensor]]) -> Any:
        y = self.linear(x).relu() * self.scale
        inner = flags["a"]["b"]
        return {
            "linear": y + 1, "relu": y - 1, "scale": y * 2, "add": y * 3, "x": y * 5, "past_state": past_state + y,
            "a": {"b": inner * 2}, "a_b": inner * 3, "linear_value": y * 7,
        }  # fmt: skip


def test_outputs_have_their_names_whatever_else_has_them(tmp_path: Path) -> None:
    """The file was refused by ONNX's checker where an operator or a parameter had the name of an output."""
    rows = {0: Dim.DYNAMIC}
    module, args = NamesOfItsGraph(), (torch.randn(3, 4), torch.randn(3, 4), {"a": {"b": torch.randn(3, 2)}})
    with torch.no_grad():
        program = torch.export.export(module, args, dynamic_shapes=(rows, rows, {"a": {"b": rows}}))
        made = translate(program).made
    name_values(made, program, {"rows": ("flags['a']['b'][0]",)})
    assert [value.name for value in made.model.graph.outputs] == [
        "linear", "relu", "scale", "add", "x_output", "present_state", "a_b", "a_b_2", "linear_value",
    ]  # fmt: skip
    assert str(made.model.graph.inputs[2].shape[0]) == "rows"
    made.save(tmp_path / "named.onnx")
    onnx.checker.check_model(str(tmp_path / "named.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "named.onnx")
    values = [args[0], args[1], args[2]["a"]["b"]]  # type: ignore[index]
    given = {one.name: value.numpy() for one, value in zip(session.get_inputs(), values, strict=True)}
    wanted = [module(*args)[key] for key in ("linear", "relu", "scale", "add", "x", "past_state")]
    for found, expected in zip(session.run(None, given), wanted, strict=False):
        torch.testing.assert_close(torch.from_numpy(found), expected)

"""An ONNX file has the names of the program's inputs and of eager's outputs."""

from __future__ import annotations

from typing import Any

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

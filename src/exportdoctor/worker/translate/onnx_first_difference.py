"""The first value of an ONNX file that differs from the exported program's: where wrong numbers begin.

`torch.onnx.verification.verify_onnx_program(compare_intermediates=True)` (torch 2.13) runs the model once for every
value and never stops early; here 200 values share a run, and the search ends at the first difference.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from exportdoctor.core.failure.kinds import NUMBERS_DIFFER
from exportdoctor.core.protocol.export import StageFailure
from exportdoctor.shims import ExportCall, export_program
from exportdoctor.targets.eager import copy_inputs
from exportdoctor.torch_internals.pytree_registry import inputs_in_traced_order
from exportdoctor.worker.prove.compare_outputs import LARGEST, largest_difference
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.translate.failed_node import fx_fact, with_node
from exportdoctor.worker.translate.onnx_program import flat_inputs, in_pairs, quiet, runnable, translate

_AT_A_TIME = 200


def first_difference(call: ExportCall, one: InputSet, *, opset: int, prefix: str) -> StageFailure | None:
    """The node behind the first value that is not eager's, `None` where all values in between agree."""
    program = export_program(call)
    reader = copy.copy(program)
    made = translate(program, opset=opset).made
    inputs = call.convert(copy_inputs(one.inputs))
    flat = flat_inputs(reader, *inputs)
    recorder = _Recorder(runnable(made.exported_program))
    recorder.run(*inputs_in_traced_order(reader, *inputs))
    known = {value.name for node in made.model.graph for value in node.outputs}
    nodes = [node for node in recorder.seen if node.name in known]
    for start in range(0, len(nodes), _AT_A_TIME):
        several = nodes[start : start + _AT_A_TIME]
        with quiet():
            answers = made.compute_values([node.name for node in several], tuple(flat))
        for node, answer in zip(several, answers, strict=True):
            found = _differs(node, answer, recorder.seen[node])
            if found:
                mismatch = StageFailure(stage="numbers", exception=NUMBERS_DIFFER, message=found)
                return with_node(mismatch, fx_fact(node), prefix)
    return None


def _differs(node: torch.fx.Node, answer: torch.Tensor, wanted: torch.Tensor) -> str:
    wanted = in_pairs(wanted)
    if answer.shape != wanted.shape:
        return f"{node.name} is {list(answer.shape)} in the file and {list(wanted.shape)} in the program"
    absolute, _, allowed = largest_difference(answer.to(wanted.dtype), wanted)
    if absolute <= allowed:
        return ""
    by = f"by {absolute:.2g}, where {allowed:.2g} is allowed" if absolute < LARGEST else "in what is not finite"
    return f"{node.name} differs from the program's {by}"


class _Recorder(torch.fx.Interpreter):
    """Runs a program and keeps every tensor that an op gives, in order."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[torch.fx.Node, torch.Tensor] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        """The value; a tensor of an op is kept."""
        value = super().run_node(n)
        if n.op == "call_function" and isinstance(value, torch.Tensor):
            self.seen[n] = value.detach().clone()
        return value

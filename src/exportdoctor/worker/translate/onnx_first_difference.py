"""The first value of an ONNX file that differs from the exported program's: where wrong numbers begin.

`torch.onnx.verification.verify_onnx_program(compare_intermediates=True)` (torch 2.13) runs the model once for every
value and never stops early; here 200 values share a run, and the search ends at the first difference.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Container, Sequence
from typing import Any

import torch

from exportdoctor.core.failure.kinds import NUMBERS_DIFFER
from exportdoctor.core.failure.messages import AFTER_ROUNDING, AMONG_EQUALS
from exportdoctor.core.protocol.export import StageFailure
from exportdoctor.report.wording.ladder import allowed_in_words
from exportdoctor.shims import ExportCall, export_program
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import copy_inputs
from exportdoctor.torch_internals.pytree_registry import inputs_in_traced_order
from exportdoctor.worker.prove.compare_outputs import LARGEST, largest_difference
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.own_buffers import own_buffers
from exportdoctor.worker.prove.tied_choices import Choice, choice_of
from exportdoctor.worker.translate.failed_node import fx_fact, with_node
from exportdoctor.worker.translate.onnx_program import flat_inputs, in_pairs, quiet, runnable, translate

_AT_A_TIME = 200
_CHOOSING = frozenset({"topk", "sort", "argsort", "argmax", "argmin", "max", "min", "kthvalue", "median", "mode"})
_CUTTING = frozenset({"_to_copy", "to", "lt", "le", "gt", "ge", "eq", "ne", "sign", "floor", "ceil", "round", "trunc"})
_ROUNDING = frozenset({"floor", "ceil", "round", "trunc", "sign"})
_MOST_BYTES = 2**30
"""Of values of the program that are kept at a time."""


def first_difference(call: ExportCall, one: InputSet, *, opset: int, prefix: str) -> StageFailure | None:
    """The node behind the first value that is not eager's, `None` where all values in between agree."""
    program = export_program(call)
    reader = copy.copy(program)
    made = translate(program, opset=opset).made
    found = first_differing_node(made, reader, call.convert(copy_inputs(one.inputs)))
    if found is None:
        return None
    node, said = found
    mismatch = StageFailure(stage="numbers", exception=NUMBERS_DIFFER, message=f"{node.name} {said}")
    return with_node(mismatch, fx_fact(node), prefix)


def first_differing_node(made: Any, reader: Any, inputs: Inputs) -> tuple[torch.fx.Node, str] | None:
    """The first node of the decomposed program whose value is another one in `made`, torch.onnx's model of it, and how
    it differs; None where all agree. `reader` is the program as exported, and `inputs` are what it takes. Another
    choice among equal values, and what is computed from it, is named where nothing else differs."""
    flat = flat_inputs(reader, *inputs)
    module = runnable(made.exported_program)
    known = {value.name for node in made.model.graph for value in node.outputs}
    nodes = [node for node in module.graph.nodes if node.op == "call_function" and node.name in known]
    tied: dict[torch.fx.Node, str] = {}
    while nodes:
        own_buffers(module)
        recorder = _Recorder(module, nodes)
        seen = recorder.record(inputs_in_traced_order(reader, *copy_inputs(inputs)))
        for start in range(0, len(seen), _AT_A_TIME):
            several = list(seen)[start : start + _AT_A_TIME]
            with quiet():
                answers = made.compute_values([node.name for node in several], tuple(flat))
            for node, answer in zip(several, answers, strict=True):
                said = _differs(answer, seen[node])
                if said and (recorder.is_tie(node, answer) or _follows(node, tied)):
                    tied.setdefault(node, said)
                elif said:
                    return _producer(node), f"{said}{_caveat(node)}"
        nodes = nodes[nodes.index(list(seen)[-1]) + 1 :] if seen else []
    return next(((_producer(node), f"{said}{_caveat(node)}") for node, said in tied.items()), None)


def _follows(node: torch.fx.Node, others: Container[torch.fx.Node]) -> bool:
    """Whether a node is computed from one of the others."""
    found, waiting = set[torch.fx.Node](), [*node.all_input_nodes]
    while waiting:
        one = waiting.pop()
        if one in others:
            return True
        if one not in found:
            found.add(one)
            waiting += one.all_input_nodes
    return False


def _differs(answer: torch.Tensor, wanted: torch.Tensor) -> str:
    wanted = in_pairs(wanted)
    answer = answer.reshape(()) if not wanted.dim() and answer.numel() == 1 else answer
    if answer.shape != wanted.shape:
        return f"is {list(answer.shape)} in the file and {list(wanted.shape)} in the program"
    absolute, _, allowed = largest_difference(answer.to(wanted.dtype), wanted)
    if absolute <= allowed:
        names = (str(one.dtype).removeprefix("torch.") for one in (answer, wanted))
        return "is {} in the file and {} in the program".format(*names) if answer.dtype != wanted.dtype else ""
    by = f"by {allowed_in_words(absolute, allowed)}" if absolute < LARGEST else "in what is not finite"
    return f"differs from the program's {by}"


def _producer(node: torch.fx.Node) -> torch.fx.Node:
    """The node that computes a value, of one of several results the node that gives all of them."""
    of = node.args[0] if node.target is operator.getitem else node
    return of if isinstance(of, torch.fx.Node) else node


def _caveat(node: torch.fx.Node) -> str:
    """What else may explain it: an index is another one among equal values, and rounding decides what is cut off."""
    packet = str(_producer(node).target).removeprefix("aten.").partition(".")[0]
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and not value.is_floating_point():
        if packet in _CHOOSING:
            return f", {AMONG_EQUALS}"
        if packet in _CUTTING:
            return f", {AFTER_ROUNDING}"
    return f", {AFTER_ROUNDING}" if packet in _ROUNDING else ""


class _Recorder(torch.fx.Interpreter):
    """Runs a program and keeps the tensors of these nodes, in order, as many as memory is meant for."""

    def __init__(self, module: torch.fx.GraphModule, nodes: Sequence[torch.fx.Node]) -> None:
        super().__init__(module)
        self._nodes, self._bytes = frozenset(nodes), 0
        self._seen: dict[torch.fx.Node, torch.Tensor] = {}
        self._choices: dict[torch.fx.Node, Choice] = {}

    def is_tie(self, node: torch.fx.Node, answer: torch.Tensor) -> bool:
        """Whether a value is another choice of indices, of what is equal in the program."""
        choice = self._choices.get(_producer(node))
        if choice is None or (_producer(node) is not node and node.args[1] != 1):
            return False
        return choice.allows(answer)

    def record(self, given: Sequence[Any]) -> dict[torch.fx.Node, torch.Tensor]:
        """What was kept of one run."""
        self.run(*given)
        return self._seen

    def run_node(self, n: torch.fx.Node) -> Any:
        """The value; a tensor or a whole number of such a node is kept."""
        value = super().run_node(n)
        if hasattr(n.target, "_schema") and self._bytes < _MOST_BYTES:
            choice = choice_of(n.target, *self.fetch_args_kwargs_from_env(n), value)
            if choice is not None:
                self._choices[n] = choice
                self._bytes += choice.source.nbytes
        seen = torch.tensor(value) if type(value) is int else value
        if n in self._nodes and isinstance(seen, torch.Tensor) and self._bytes < _MOST_BYTES:
            self._seen[n] = seen.detach().clone()
            self._bytes += seen.nbytes
        return value

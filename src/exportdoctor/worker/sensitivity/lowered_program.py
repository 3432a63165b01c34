"""An exported program that PT2E quantises: what a layer is given is a quantised value, or the value itself."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.sensitivity import Lowering
from exportdoctor.targets.eager import run_once
from exportdoctor.torch_internals.tracer_frames import is_operator
from exportdoctor.worker.sensitivity.layers import GraphLayer
from exportdoctor.worker.sensitivity.lowered_modules import CALL, float_outputs
from exportdoctor.worker.sensitivity.quantisers import Feed
from exportdoctor.worker.translate.failed_node import fx_fact, user_frame

_SWITCH, _NOTE = "_exportdoctor_switch", "_exportdoctor_note"


@dataclass
class _Run:
    """What is lowered in a run, and the values that it noted."""

    lowered: frozenset[str] = frozenset()
    noted: dict[str, torch.Tensor] = field(default_factory=dict)


class _Switch(torch.nn.Module):
    def __init__(self, run: _Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, layer: str, exact: Any, quantised: Any) -> Any:
        return quantised if layer in self.run.lowered else exact


class _Note(torch.nn.Module):
    def __init__(self, run: _Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            self.run.noted[name] = value


def quantise_program(program: Any, to: Lowering, calibration: Sequence[Feed], kept: Collection[str] = ()) -> Any:
    """What PT2E makes of a program's module with torchao's quantiser for x86, but for the submodules `kept`.

    Weights stay as they are, beside what quantises them. Raises UsageError, and what torchao raises.
    """
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    if to not in ("int8", "w8a8"):
        raise UsageError(f"PT2E's quantiser lowers nothing to {to}", hint="Leave out --engine, or choose int8 or w8a8")
    config = x86.get_default_x86_inductor_quantization_config(is_dynamic=to == "w8a8")
    quantiser = x86.X86InductorQuantizer().set_global(config)
    module = program.module()
    for node in module.graph.nodes:
        if fx_fact(node).module in kept:  # by the name that this call of the submodule has: `name@1`, say
            quantiser.set_module_name_qconfig(list(node.meta["nn_module_stack"].values())[-1][0], None)
    state = {name: (buffer, buffer.detach().clone()) for name, buffer in module.named_buffers()}
    prepared = prepare_pt2e(module, quantiser)
    for feed in calibration:
        args, kwargs = copy.deepcopy(feed[CALL])
        prepared(*args, **kwargs)
    for buffer, value in state.values():  # the model's own, which a call may change
        buffer.copy_(value)
    return convert_pt2e(prepared, fold_quantize=False)


@dataclass(kw_only=True)
class LoweredProgram:
    """A program's submodules that PT2E lowers. `left` counts nodes outside of submodules, which are not measured."""

    module: torch.nn.Module
    layers: list[GraphLayer]
    outputs: list[str]
    local: Mapping[str, list[str]]
    left: int
    _run: _Run

    def run(self, feed: Feed, lowered: Collection[str], names: Sequence[str] = ()) -> list[Any]:
        """The outputs, or the values `names`, as float32 arrays, with these layers lowered."""
        self._run.lowered, self._run.noted = frozenset(lowered), {}
        found = float_outputs(run_once(self.module, feed[CALL]))
        seen = {**self._run.noted, **dict(zip(self.outputs, found.values(), strict=True))}
        return [seen[name].detach().float().numpy() for name in names or self.outputs]


def lower_program(program: Any, to: Lowering, calibration: Sequence[Feed]) -> LoweredProgram:
    """The program with each submodule that PT2E lowers behind a switch. Raises UsageError, TargetError."""
    try:
        module = quantise_program(program, to, calibration)
    except UsageError:
        raise
    except Exception as error:
        raise TargetError(f"The quantiser fails: {type(error).__name__}: {first_line(error)}") from error
    run, graph = _Run(), module.graph
    module.add_submodule(_SWITCH, _Switch(run))
    module.add_submodule(_NOTE, _Note(run))
    layers: dict[str, GraphLayer] = {}
    left = 0
    for node in list(graph.nodes):
        exact = {one: one.args[0].args[0] for one in node.all_input_nodes if _is_dequantised(one)}
        if not exact:
            continue
        fact = fx_fact(node)
        if fact.module:
            layer = layers.setdefault(fact.module, GraphLayer(name=fact.module, depth=len(layers)))
            layer.nodes.append(SimpleNamespace(name=node.name, op_type=fact.op))
            frame = user_frame(fact)
            if frame is not None and not layer.file:
                layer.file, layer.line = frame.file, frame.line
            with graph.inserting_before(node):
                for one, source in exact.items():
                    exact[one] = graph.call_module(_SWITCH, (fact.module, source, one))
            with graph.inserting_after(node):
                graph.call_module(_NOTE, (node.name, node))
        elif node.op != "output":
            left += 1
        for one, source in exact.items():
            node.replace_input_with(one, source)
    if not layers:
        raise UsageError(f"PT2E could lower no submodule to {to}")
    module.recompile()
    outputs = list(float_outputs(run_once(module, calibration[0][CALL])))
    return LoweredProgram(
        module=module,
        layers=list(layers.values()),
        outputs=outputs,
        local={name: [node.name for node in layer.nodes if node.name in run.noted] for name, layer in layers.items()},
        left=left,
        _run=run,
    )


def _is_dequantised(node: torch.fx.Node) -> bool:
    return is_operator(node.target) and str(node.target).startswith("quantized_decomposed.dequantize_per")

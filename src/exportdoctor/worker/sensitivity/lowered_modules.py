"""A module whose linear layers can each be lowered by torchao: a layer and what torchao makes of it change places."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.sensitivity import Lowering
from exportdoctor.targets.eager import run_once
from exportdoctor.worker.prove.compare_outputs import tensors_in
from exportdoctor.worker.sensitivity.layers import GraphLayer
from exportdoctor.worker.sensitivity.quantisers import Feed

CALL = "call"
"""The key of a feed under which the inputs of a call are: positional ones and keywords."""


def torchao_config(to: Lowering) -> Any:
    """torchao's own form of a precision. Raises UsageError where it has none."""
    from torchao import quantization as ao
    from torchao.quantization.granularity import PerGroup

    match to:
        case "int8":
            return ao.Int8WeightOnlyConfig()
        case "w8a8":
            return ao.Int8DynamicActivationInt8WeightConfig()
        case "w4a16":
            bits: Any = torch.int4  # type: ignore[attr-defined]
            return ao.IntxWeightOnlyConfig(weight_dtype=bits, granularity=PerGroup(32))
    raise UsageError(
        f"torchao lowers no single layer to {to}", hint="Leave out --engine, or choose int8, w8a8 or w4a16"
    )


def quantise_copy(module: torch.nn.Module, to: Lowering, names: Collection[str]) -> torch.nn.Module:
    """A copy in which torchao has quantised the linear layers with these names. Raises what torchao raises."""
    from torchao.quantization import quantize_

    made = copy.deepcopy(module)
    quantize_(made, torchao_config(to), filter_fn=lambda _, name: name in names)
    return made


@dataclass(kw_only=True)
class LoweredModules:
    """The layers that torchao takes, each with its lowered form. `refused` says why it takes not all of them.

    It has the attributes of a SwitchedModel. The module is as it was after every run.
    """

    module: torch.nn.Module
    layers: list[GraphLayer]
    outputs: list[str]
    forms: Mapping[str, torch.nn.Module]
    refused: tuple[str, ...] = ()
    local: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.local = {name: [f"{name}.output"] for name in self.forms}

    def run(self, feed: Feed, lowered: Collection[str], names: Sequence[str] = ()) -> list[Any]:
        """The outputs, or the values `names`, as float32 arrays, with these layers lowered."""
        exact = {name: self.module.get_submodule(name) for name in self.forms}
        seen: dict[str, torch.Tensor] = {}
        hooks = []
        try:
            for name in self.forms:
                layer = self.forms[name] if name in lowered else exact[name]
                self.module.set_submodule(name, layer)
                if f"{name}.output" in names:
                    hooks.append(layer.register_forward_hook(_keep_output(seen, f"{name}.output")))
            found = run_once(self.module, feed[CALL])
        finally:
            for hook in hooks:
                hook.remove()
            for name, layer in exact.items():
                self.module.set_submodule(name, layer)
        seen.update(zip(self.outputs, float_outputs(found).values(), strict=True))
        return [seen[name].detach().float().numpy() for name in names or self.outputs]


def _keep_output(seen: dict[str, torch.Tensor], name: str) -> Any:
    def keep(_module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        seen[name] = output

    return keep


def float_outputs(output: Any) -> dict[str, torch.Tensor]:
    """The floating-point tensors of an output: by their keys, where it is a mapping, else by number."""
    if isinstance(output, Mapping):
        return {
            f"{key}.{place}" if place else str(key): tensor
            for key, value in output.items()
            for place, tensor in enumerate(_floats(value))
        }
    return {f"output {place}": tensor for place, tensor in enumerate(_floats(output))}


def _floats(value: Any) -> list[torch.Tensor]:
    return [one for one in tensors_in(value) if one.is_floating_point()]


def lower_modules(module: torch.nn.Module, to: Lowering, example: Any) -> LoweredModules:
    """The module with what torchao makes of each linear layer that is called. Raises UsageError where it takes none."""
    torchao_config(to)
    called: dict[str, None] = {}
    linear = {name: one for name, one in module.named_modules() if name and type(one) is torch.nn.Linear}
    hooks = [
        one.register_forward_pre_hook(lambda *_, name=name: called.setdefault(name)) for name, one in linear.items()
    ]
    try:
        found = run_once(module, example)
    finally:
        for hook in hooks:
            hook.remove()
    forms: dict[str, torch.nn.Module] = {}
    refused: list[str] = []
    for name in called:
        try:
            forms[name] = quantise_copy(torch.nn.Sequential(linear[name]), to, ["0"])[0]  # type: ignore[index]
        except Exception as error:
            refused.append(f"{name}: {first_line(error, 120)}")
    if not forms:
        why = f": {refused[0]}" if refused else ""
        raise UsageError(f"torchao could lower no linear layer to {to}{why}")
    layers = [
        GraphLayer(name=name, depth=depth, nodes=[SimpleNamespace(name=name, op_type="Linear")])
        for depth, name in enumerate(forms)
    ]
    return LoweredModules(
        module=module, layers=layers, outputs=list(float_outputs(found)), forms=forms, refused=tuple(refused)
    )

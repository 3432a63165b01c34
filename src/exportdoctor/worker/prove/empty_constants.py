"""Constants of a program that have no values: torch.export leaves tensors of its trace in some programs, unsaid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracing_modes import is_of_transform


@dataclass(frozen=True, kw_only=True)
class EmptyConstant:
    """The constant's name, what left it, and the node that takes it; None where none does."""

    name: str
    is_of_transform: bool
    node: torch.fx.Node | None


def find_empty_constant(program: Any) -> EmptyConstant | None:
    """The first such constant of a program of a module with values; None where every constant has some."""
    for name, value in program.constants.items():
        if not isinstance(value, torch.Tensor):
            continue
        wrapped = is_of_transform(value)
        if wrapped or is_fake(value):
            return EmptyConstant(name=name, is_of_transform=wrapped, node=_user_of(program, name))
    return None


def _user_of(program: Any, name: str) -> torch.fx.Node | None:
    """The first node that takes the constant."""
    targets = program.graph_signature.inputs_to_lifted_tensor_constants
    for node in program.graph.nodes:
        if node.op == "placeholder" and targets.get(node.name) == name:
            return _first_use(node, program.graph_module)
    return None


def _first_use(value: torch.fx.Node, holder: torch.nn.Module) -> torch.fx.Node | None:
    """The first node that takes a value, in the graph that an operator on graphs runs with it where there is one."""
    user = next(iter(value.users), None)
    places = [one for one in user.args if isinstance(one, torch.fx.Node)] if user is not None else []
    inner = next((one for one in places if one.op == "get_attr"), None)
    graph = getattr(holder, str(inner.target), None) if inner is not None else None
    if inner is None or not isinstance(graph, torch.fx.GraphModule):
        return user
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    number = places[places.index(inner) + 1 :].index(value)
    return _first_use(given[number], graph) if number < len(given) else user

"""The user's own names for the values of a traced graph: variables of the frames that failed, and parameters.

The tracer knows each value by its tensor; a local variable that holds that tensor names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from exportdoctor.torch_internals.tracer_frames import is_tracer_of, node_of
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.describe.python_frames import is_user_frame, tracebacks


def user_names(chain: tuple[BaseException, ...], graph: torch.fx.Graph) -> dict[torch.fx.Node, str]:
    """Node -> name; the innermost frame's name counts. Nodes without a name are left out."""
    names: dict[torch.fx.Node, str] = {}
    for error in chain:
        frames = [link.tb_frame for link in tracebacks(error)]
        tracer = _tracer(frames, graph)
        users = [frame for frame in frames if is_user_frame(frame)]
        for name, tensor in itertools.chain(_state(users), *map(_variables, users)):
            node = _node(tensor, tracer)
            if node is not None:
                names[node] = name
    return names


def nodes_of_tensors(values: Any, chain: tuple[BaseException, ...], graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """The nodes of the tensors in a nest of values."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    for error in chain:
        tracer = _tracer([link.tb_frame for link in tracebacks(error)], graph)
        yield from (node for tensor in tensors if (node := _node(tensor, tracer)) is not None)


def _tracer(frames: list[FrameType], graph: torch.fx.Graph) -> Any:
    return next((one for frame in frames if is_tracer_of(one := frame.f_locals.get("self"), graph)), None)


def _variables(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    if frame.f_code.co_name != "<module>":
        yield from ((name, value) for name, value in list(frame.f_locals.items()) if isinstance(value, torch.Tensor))


def _state(frames: list[FrameType]) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers of the outermost module whose code was running."""
    owners = (frame.f_locals.get("self") for frame in frames)
    owner = next((owner for owner in owners if isinstance(owner, torch.nn.Module)), None)
    if owner is not None:
        yield from owner.named_parameters()
        yield from owner.named_buffers()


def _node(tensor: torch.Tensor, tracer: Any) -> torch.fx.Node | None:
    try:
        node: torch.fx.Node | None = node_of(tensor, tracer)
    except Exception:  # names are an extra: without them the values keep the tracer's
        return None
    return node

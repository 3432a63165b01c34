"""Whether an operator of torch had a fake result of another rank or dtype than its real one, on which later code fails.

Operators with a size that depends on data are asked: each runs on small tensors of zeros like those that it was traced
with. What they hold does not matter for rank and dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from exportdoctor.core.records.outcome import WrongFake
from exportdoctor.torch_internals.shape_env import has_unbacked_size
from exportdoctor.torch_internals.tracer_frames import is_operator
from exportdoctor.torch_internals.trees import tree_leaves, tree_map
from exportdoctor.worker.describe.partial_graph import traced_graphs, value_of
from exportdoctor.worker.translate.failed_node import fx_fact, user_frame

_LARGEST, _UNKNOWN = 8, 2


def find_wrong_fake(chain: tuple[BaseException, ...]) -> WrongFake | None:
    """The first such operator in the traced graph; None where there is none, or nothing was traced."""
    graph = max(traced_graphs(chain), key=lambda one: len(one.nodes), default=None)
    for node in graph.nodes if graph is not None else ():
        fakes = [leaf for leaf in tree_leaves(value_of(node)) if isinstance(leaf, torch.Tensor)]
        if not is_operator(node.target) or node.target.namespace != "aten" or not any(map(has_unbacked_size, fakes)):
            continue
        reals = _run(node.target, node.args, node.kwargs)
        said = next((text for pair in zip(fakes, reals, strict=False) if (text := _difference(*pair))), "")
        if said:
            frame = user_frame(fx_fact(node))
            return WrongFake(op=str(node.target), frame=frame, said=said, instead=_dim_from_the_front(node, reals))
    return None


def _run(operator: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that the operator gives for zeros; none where it refuses them."""
    try:
        with torch.no_grad():
            made = operator(*tree_map(_small, args), **tree_map(_small, kwargs))
    except Exception:
        return []
    return [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]


def _small(value: Any) -> Any:
    """A small tensor of zeros like a node's value; a number for a symbolic one."""
    found = value_of(value) if isinstance(value, torch.fx.Node) else value
    if isinstance(found, torch.Tensor):
        return torch.zeros([_size(size) for size in found.shape], dtype=found.dtype)
    return _size(found) if isinstance(found, torch.SymInt) else found


def _size(size: Any) -> int:
    known = size if isinstance(size, int) else getattr(size.node, "hint", None)
    return min(int(known), _LARGEST) if known is not None else _UNKNOWN


def _difference(fake: torch.Tensor, real: torch.Tensor) -> str:
    """What the fake result has that the real one has not."""
    if fake.dim() != real.dim():
        return f"{fake.dim()} dimensions, where the operator gives {real.dim()}"
    return f"{fake.dtype}, where the operator gives {real.dtype}" if fake.dtype != real.dtype else ""


def _dim_from_the_front(node: torch.fx.Node, reals: Sequence[torch.Tensor]) -> str:
    """`dim=1` where the fake result is right with that in place of a negative one, as was seen; else empty."""
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments]
    places = [place for place, name in enumerate(names[: len(node.args)]) if name == "dim"]
    first = value_of(node.args[0]) if node.args and isinstance(node.args[0], torch.fx.Node) else None
    mode, rank = getattr(first, "fake_mode", None), first.dim() if isinstance(first, torch.Tensor) else 0
    if mode is None:
        return ""
    for place in places:
        dim = node.args[place]
        if not isinstance(dim, int) or dim >= 0:
            continue
        args = [value_of(one) if isinstance(one, torch.fx.Node) else one for one in node.args]
        args[place] = dim + rank
        try:
            with mode:
                made = target(*args, **node.kwargs)
        except Exception:
            continue
        found = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        if found and not any(map(_difference, found, reals)):
            return f"dim={args[place]}"
    return ""

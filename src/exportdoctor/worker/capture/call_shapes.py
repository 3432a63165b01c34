"""The shapes of a call's inputs and outputs: enough for an opaque op to replace it. No tensor is kept.

They are recorded in two captures of different sizes, to find how output sizes follow from input sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from exportdoctor.torch_internals.trees import tree_flatten, tree_leaves

Sizes = tuple[int, ...] | int | None
"""A tensor's shape, a Python int, or None for anything else."""

# a cache holds a list of layers that hold tensors
_DEPTH = 6
PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True)
class OutputLeaf:
    """One leaf of an output: a tensor's shape and type, else a plain value. `same`: index of the input leaf it is."""

    sizes: Sizes
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    value: Any = None
    same: int | None = None


@dataclass(frozen=True)
class CallShapes:
    """One call of the module with the id `child`. `refusal`: why no op can replace it; empty if one can."""

    child: int
    taken: tuple[Sizes, ...]
    given: tuple[OutputLeaf, ...] = ()
    layout: Any = None
    refusal: str = ""


@dataclass
class OpenCall:
    """A call that has not returned yet: its inputs by identity and version, to detect changes to them."""

    child: int
    leaves: list[Any]
    versions: list[int | None]
    calls: list[CallShapes] = field(default_factory=list)


def open_call(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpenCall:
    """Record a call before it runs."""
    leaves = tree_leaves((args, kwargs))
    return OpenCall(id(module), leaves, [_version(leaf) for leaf in leaves])


def close_call(taken: OpenCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> CallShapes:
    """Record a call after it ran, with the same arguments and its output."""
    sizes = tuple(sizes_of(leaf) for leaf in taken.leaves)
    refusal = _input_change(taken, args, kwargs)
    if refusal:
        return CallShapes(taken.child, sizes, refusal=refusal)
    leaves, layout = tree_flatten(output)
    strange = next((leaf for leaf in leaves if not isinstance(leaf, (torch.Tensor, *PLAIN))), None)
    if strange is not None:
        reason = f"it returns a {type(strange).__name__}, which is no registered pytree"
        return CallShapes(taken.child, sizes, refusal=reason)
    return CallShapes(taken.child, sizes, tuple(_output_leaf(leaf, taken.leaves) for leaf in leaves), layout)


def sizes_of(leaf: Any) -> Sizes:
    """The sizes of an input leaf that an output size may follow from."""
    if isinstance(leaf, torch.Tensor):
        return () if leaf.is_nested else tuple(leaf.shape)
    return leaf if isinstance(leaf, (int, torch.SymInt)) and not isinstance(leaf, bool) else None  # type: ignore[return-value]


def _output_leaf(leaf: Any, inputs: list[Any]) -> OutputLeaf:
    if not isinstance(leaf, torch.Tensor):
        return OutputLeaf(sizes_of(leaf), value=leaf)
    same = next((index for index, given in enumerate(inputs) if given is leaf), None)
    return OutputLeaf(sizes_of(leaf), leaf.dtype, leaf.device, same=same)


def _version(leaf: Any) -> int | None:
    return leaf._version if isinstance(leaf, torch.Tensor) and not leaf.is_inference() else None


def _input_change(taken: OpenCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """How the call changed its inputs, or may have; empty if it did not."""
    after = tree_leaves((args, kwargs))
    if len(after) != len(taken.leaves) or any(a is not b for a, b in zip(after, taken.leaves, strict=True)):
        return "it changes a container that it is given"
    if [_version(leaf) for leaf in after] != taken.versions:
        return "it writes into a tensor that it is given"
    state = next((leaf for leaf in after if not isinstance(leaf, (torch.Tensor, *PLAIN))), None)
    known = state is None or callable(state) or isinstance(state, (type, torch.nn.Module, torch.Generator))
    known = known or not _holds_tensors(state)
    return "" if known else f"it is given a {type(state).__name__}, which it may change"


def _holds_tensors(value: Any, depth: int = 0) -> bool:
    """Whether an object holds tensors: a cache does, a configuration does not."""
    if isinstance(value, torch.Tensor):
        return True
    if depth > _DEPTH:
        return False
    if isinstance(value, (list, tuple, set)):
        return any(_holds_tensors(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return any(_holds_tensors(item, depth + 1) for item in value.values())
    return hasattr(value, "__dict__") and _holds_tensors(vars(value), depth + 1)

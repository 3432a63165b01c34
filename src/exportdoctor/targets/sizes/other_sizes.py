"""Makes inputs of other sizes, where a factory gave dynamic shapes and one input set.

Dimensions that belong together grow together: those of one `Dim`, those derived from it, and unnamed ones of one size.
Values are repeated, so an index stays a legal index. Inputs that eager does not accept are left out.
`torch.export.AdditionalInputs` derives dynamic shapes from several input sets; this goes the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from exportdoctor.targets.eager import runs_in_eager
from exportdoctor.targets.input_objects import fields_of, holds_tensors
from exportdoctor.targets.sizes.dynamic_shapes import dynamic_dims, map_inputs
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.trees import tree_flatten

if TYPE_CHECKING:
    import torch
    from torch import nn

    from exportdoctor.targets.built import Inputs

Growth = Callable[[int], int]

GROWTHS: tuple[Growth, ...] = (lambda size: 2 * size, lambda size: size + 1, lambda size: size - 1)
"""Doubling first: it keeps multiples, and one size that is the sum of others."""

_SEED = 11
_SEEDS_OF_DIMENSION = 1_000_003
"""What is repeated again, or in another dimension, has other shares: with the same ones it would be equal."""
_MOST_NEARER = 1 / 16
"""What is repeated is nearer to zero by up to so much: less would vanish in bfloat16, and in what rounding does."""


def other_sizes(module: nn.Module, inputs: Inputs, shapes: Any) -> tuple[Inputs, ...]:
    """One further input set whose dynamic dimensions all differ, or none if eager accepts none."""
    for first in range(len(GROWTHS)):
        grown = _grow(module, inputs, shapes, GROWTHS[first:])
        if grown is not None and runs_in_eager(module, grown):
            return (grown,)
    return ()


def resize_inputs(
    module: nn.Module,
    inputs: Inputs,
    shapes: Any,
    growths: tuple[Growth, ...],
    *,
    least: int = 2,
    only: int | None = None,
    following: AbstractSet[int] = frozenset(),
) -> Inputs | None:
    """The inputs with their dynamic dimensions changed, or None if none can be.

    `least` is the smallest size; with `only`, one group of dimensions that belong together is changed, by its number.
    Sizes in `following` stay one above those that they follow (`following_sizes`).
    """
    groups: dict[Any, None] = {}
    if only is not None:
        map_inputs(
            lambda _, leaf, spec: groups.update(dict.fromkeys(_groups(leaf, spec, following))) or leaf,
            module,
            inputs,
            shapes,
        )
    chosen = list(groups)[only % len(groups)] if only is not None and groups else None
    return _grow(module, inputs, shapes, growths, least=least, chosen=chosen, following=following)


def declared_least(module: nn.Module, inputs: Inputs, shapes: Any) -> tuple[int, ...]:
    """For each group of dimensions that belong together, as `resize_inputs` numbers them, the least size that is
    declared; 0 where none is."""
    found: dict[Any, int] = {}

    def visit(_: str, leaf: Any, spec: Any) -> Any:
        for group, dim in zip(_groups(leaf, spec, frozenset()), dynamic_dims(leaf, spec).values(), strict=True):
            least = getattr(getattr(dim, "root", dim), "min", None)
            found[group] = max(found.get(group, 0), least or 0)
        return leaf

    map_inputs(visit, module, inputs, shapes)
    return tuple(found.values())


def following_sizes(known: Sequence[Inputs], module: nn.Module, shapes: Any) -> frozenset[int]:
    """The sizes of the first set's unnamed dynamic dimensions that are one more than others, in each set.

    A mask of a cache's length and one: a set with another mask is none that the caller would give.
    """
    sizes: dict[tuple[str, int | None], list[int]] = {}

    def visit(path: str, leaf: Any, spec: Any) -> Any:
        for at, dim in dynamic_dims(leaf, spec).items():
            if _group(0, dim) == 0:
                sizes.setdefault((path, at), []).append(leaf if at is None else leaf.shape[at])
        return leaf

    for inputs in known:
        map_inputs(visit, module, inputs, shapes)
    rows = {tuple(found) for found in sizes.values() if len(found) == len(known)}
    changed = {row for row in rows if len(set(row)) > 1}
    found = {row[0] for row in changed if tuple(size - 1 for size in row) in changed}
    return frozenset(size for size in found if sum(row[0] in (size, size - 1) for row in rows) == 2)


def _groups(leaf: Any, spec: Any, following: AbstractSet[int]) -> list[Any]:
    """What the dynamic dimensions of a leaf belong to: a `Dim` by name, else all that have one size."""
    sizes = ((leaf if at is None else leaf.shape[at], dim) for at, dim in dynamic_dims(leaf, spec).items())
    return [_group(size - (size in following), dim) for size, dim in sizes]


def _group(size: int, dim: Any) -> Any:
    return getattr(getattr(dim, "root", dim), "__name__", size)


def same_shapes(left: Inputs, right: Inputs) -> bool:
    """Whether two input sets have the same structure and the same sizes throughout; keywords in any order."""
    return _shapes(left) == _shapes(right)


def _shapes(inputs: Inputs) -> tuple[Any, list[Any]]:
    args, kwargs = inputs
    leaves, structure = tree_flatten((args, {name: kwargs[name] for name in sorted(kwargs)}))
    return structure, [_shape(leaf) for leaf in leaves]


def _shape(leaf: Any) -> Any:
    """The shape of a tensor, a plain value as it is, the class of anything else: an object may not compare."""
    if hasattr(leaf, "shape"):
        return tuple(leaf.shape)
    if not isinstance(leaf, int | float | str | None) and holds_tensors(leaf):
        return type(leaf), _shapes(((), fields_of(leaf)))
    return leaf if isinstance(leaf, int | float | str | None) else type(leaf)


def _grow(
    module: nn.Module,
    inputs: Inputs,
    shapes: Any,
    growths: tuple[Growth, ...],
    *,
    least: int = 2,
    chosen: Any = None,
    following: AbstractSet[int] = frozenset(),
) -> Inputs | None:
    """The inputs after growth of all groups, or of the chosen one; `None` if nothing could grow."""
    changed = False

    def visit(path: str, leaf: Any, spec: Any) -> Any:
        nonlocal changed
        for dimension, dim in dynamic_dims(leaf, spec).items():
            size = leaf if dimension is None else leaf.shape[dimension]
            above = int(size in following and _group(0, dim) == 0)
            if chosen is not None and _group(size - above, dim) != chosen:
                continue
            new = grown_size(size - above, dim, growths, least=least) + above
            changed = changed or new != size
            leaf = new if dimension is None else repeat_to(leaf, dimension, new)
        return leaf

    grown = map_inputs(visit, module, inputs, shapes)
    return grown if changed else None


def grown_size(size: int, dim: Any, growths: tuple[Growth, ...], *, least: int = 2) -> int:
    """The size after the first growth that the dimension's bounds allow; the size itself if none does."""
    root = getattr(dim, "root", dim)
    follow: Growth = getattr(dim, "fn", lambda value: value)
    step = follow(1) - follow(0)
    value = (size - follow(0)) // step
    for grow in growths:
        if _allows(root, grow(value), least) and follow(grow(value)) >= least:
            return int(follow(grow(value)))
    return size


def _allows(dim: Any, value: int, least: int) -> bool:
    lowest, highest = getattr(dim, "min", None), getattr(dim, "max", None)
    return (lowest is None or value >= lowest) and (highest is None or bool(value <= highest)) and value >= least


def repeat_to(tensor: torch.Tensor, dimension: int, size: int) -> torch.Tensor:
    """The tensor with `dimension` cut or repeated from its start until it has `size`.

    Fractions among what is repeated are nearer to zero by some percent, each by another share: equal scores would be
    ties that the example does not have. Whole numbers, also those in floats (masks), infinities and NaN stay.
    """
    import torch

    before = tensor.shape[dimension]
    if before in (0, size):
        return tensor
    index = torch.arange(size, device=tensor.device) % before
    grown = tensor.detach().index_select(dimension, index)
    if size > before and _has_fractions(grown):
        repeated = grown.narrow(dimension, before, size - before)
        chance = torch.Generator().manual_seed(_SEED + _SEEDS_OF_DIMENSION * dimension + before)
        factors = torch.empty(repeated.shape).uniform_(1 - _MOST_NEARER, 1, generator=chance)
        nearer = (repeated * factors.to(repeated.device)).to(repeated.dtype)
        repeated.copy_(torch.where(repeated == repeated.trunc(), repeated, nearer))
    return grown.requires_grad_(tensor.requires_grad)


def _has_fractions(tensor: torch.Tensor) -> bool:
    """Whether it holds numbers that need not be whole."""
    plain = not (is_fake(tensor) or tensor.is_meta)
    return plain and str(tensor.layout) == "torch.strided" and tensor.is_floating_point() and tensor.itemsize > 1

"""Whether the zeros of a mask stand for positions that eager ignores, and what a tensor holds at the others.

At ignored positions eager's own outputs may be arbitrary: what a row attends to that may attend to nothing depends on
the kernel. No name and no dtype says that zeros are ignored (torch's key_padding_mask has ones there): eager is asked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import CallResult, copy_inputs
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.prove.compare_outputs import compare_outputs
from exportdoctor.worker.prove.drawn_values import draw_like
from exportdoctor.worker.prove.input_set import InputSet, run_in_eager
from exportdoctor.worker.prove.object_walk import map_tensors, tensors_by_path

_SEED = 43


class _Positions(NamedTuple):
    """The dimension of a tensor that has the mask's positions from `start` to `stop`."""

    dim: int
    start: int
    stop: int


def ignores_zeros(module: torch.nn.Module, inputs: Inputs, path: str) -> bool:
    """Whether eager ignores the positions at which the mask at `path`, (batch, positions), has zeros.

    With the first or the last positions of all rows masked, other values there change every floating output there, and
    leave the outputs at all other positions, and those that have none, as they are; other values at these change every
    floating output there; and without the zeros something is different. Takes up to eight runs of eager.
    """
    mask = tensors_by_path(inputs)[path]
    if mask.dim() != 2 or mask.shape[1] < 2 or not mask.shape[0]:
        return False
    return any(_ignores(module, inputs, path, zeros) for zeros in _ends(mask))


def _ends(mask: torch.Tensor) -> Sequence[torch.Tensor]:
    """The mask with zeros at the start, and at the end, of each row alone."""
    count = max(1, mask.shape[1] // 3)
    left, right = torch.ones_like(mask), torch.ones_like(mask)
    left[:, :count] = 0
    right[:, -count:] = 0
    return left, right


def _ignores(module: torch.nn.Module, inputs: Inputs, path: str, mask: torch.Tensor) -> bool:
    chance = random.Random(_SEED)
    base = _with_mask(inputs, path, mask)
    last = last_positions(base, path)
    zeros, ones = (_redraw(base, path, mask, last, mask == value, chance) for value in (0, 1))
    if zeros is None or ones is None:
        return False
    found: list[CallResult] = []
    for one in (base, zeros, ones, _with_mask(inputs, path, torch.ones_like(mask))):
        results = run_in_eager(module, [one])
        if results is None:
            return False
        found += results
    plain, with_zeros, with_ones, unmasked = (tree_leaves(one.output) for one in found)
    if not _agree(_show(plain, mask, last), _show(with_zeros, mask, last)) or _agree(plain, unmasked):
        return False
    floats = [
        place
        for place, leaf in enumerate(plain)
        if isinstance(leaf, torch.Tensor)
        and leaf.is_floating_point()
        and positions_in(leaf.shape, mask.shape, last) is not None
    ]
    return (
        any(leaf.numel() for leaf in (plain[place] for place in floats))
        and _all_differ(floats, _show(plain, mask, last), _show(with_ones, mask, last))
        and _all_differ(floats, _show(plain, mask == 0, last), _show(with_zeros, mask == 0, last))
    )


def _all_differ(places: Sequence[int], one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether the tensors at these places differ where they have elements."""
    if len(one) != len(other):
        return False
    return not any(one[place].numel() and _agree([one[place]], [other[place]]) for place in places)


def _agree(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return compare_outputs("", one, other).holds


def _show(leaves: Sequence[Any], mask: torch.Tensor, last: int | None) -> list[Any]:
    return [show_unmasked(leaf, mask, last) for leaf in leaves]


def _with_mask(inputs: Inputs, path: str, mask: torch.Tensor) -> Inputs:
    changed: Inputs = map_tensors(
        copy_inputs(inputs), lambda where, leaf: mask.to(leaf.dtype) if where == path else leaf
    )
    return changed


def _redraw(
    inputs: Inputs, path: str, mask: torch.Tensor, last: int | None, chosen: torch.Tensor, chance: random.Random
) -> Inputs | None:
    """The inputs with other values at the chosen positions of all other tensors; None where none could be changed."""
    changed_any = []

    def change(where: str, leaf: torch.Tensor) -> torch.Tensor:
        at = positions_in(leaf.shape, mask.shape, last, before=True) if where != path else None
        if at is None or leaf.layout != torch.strided:
            return leaf
        moved = leaf.detach().clone().movedim(at.dim, mask.dim() - 1)
        places = chosen[..., at.start : at.stop].to(leaf.device)
        seen = moved[places]
        drawn = _other_values(seen, leaf, chance)
        if torch.equal(drawn, seen):
            return leaf
        changed_any.append(where)
        moved[places] = drawn
        return moved.movedim(mask.dim() - 1, at.dim)

    changed: Inputs = map_tensors(copy_inputs(inputs), change)
    return changed if changed_any else None


def _other_values(seen: torch.Tensor, leaf: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """Floats of about the same spread; of whole numbers the same in another order, or others of the leaf."""
    if not seen.numel():
        return seen
    if seen.is_floating_point():
        return draw_like(seen, chance)
    rolled = seen.flatten().roll(1).reshape(seen.shape)
    if seen.is_complex() or not torch.equal(rolled, seen):
        return rolled
    others = [value for value in leaf.detach().unique().tolist() if value != seen.flatten()[0]]
    return torch.full_like(seen, chance.choice(others)) if others else seen


def mask_of(one: InputSet) -> torch.Tensor | None:
    """The whole-number or boolean tensor whose zeros mask positions of its own shape.

    None for a square one without another input for the same rows and positions, or the last of them: it may mask pairs
    of positions.
    """
    tensors = tensors_by_path(one.inputs) if one.mask_path else {}
    mask = tensors.pop(one.mask_path or "", None)
    if mask is None or mask.shape[0] != mask.shape[-1] or last_positions(one.inputs, one.mask_path or "") is not None:
        return mask
    rows = (other for other in tensors.values() if other.shape[: mask.dim()] == mask.shape)
    return mask if any(not other.is_floating_point() or other.dim() > mask.dim() for other in rows) else None


def last_positions(inputs: Inputs, path: str) -> int | None:
    """How many of the mask's positions, its last, this call's other whole numbers have: the rest are of a cache.

    None where one of them has as many positions as the mask, or they differ.
    """
    tensors = tensors_by_path(inputs)
    mask = tensors.pop(path)
    *rows, length = mask.shape
    wholes = (one for one in tensors.values() if not one.is_floating_point() and one.dim() == mask.dim())
    found = {one.shape[-1] for one in wholes if [*one.shape[:-1]] == rows}
    return next(iter(found)) if len(found) == 1 and max(found) < length else None


def positions_in(
    shape: Sequence[int], mask: Sequence[int], last: int | None, *, before: bool = False
) -> _Positions | None:
    """Where a tensor of this shape has the mask's positions, behind the same batch; None where it has none.

    They are the first dimension of that size: a cache has its heads between the two. Where the call itself gives only
    the `last` positions, what has no heads has these; with `before`, a tensor may have those before them.
    """
    *batch, length = mask
    rank = len(batch)
    if list(shape[:rank]) != batch:
        return None
    rest = list(shape[rank:])
    if last is not None and rest and len(rest) <= 2 and rest[0] == last:
        return _Positions(rank, length - last, length)
    if length in rest and (last is None or len(rest) > 2):
        return _Positions(rank + rest.index(length), 0, length)
    if before and last is not None and length - last in rest:
        return _Positions(rank + rest.index(length - last), 0, length - last)
    return None


def show_unmasked(leaf: Any, mask: torch.Tensor, last: int | None) -> Any:
    """What a tensor holds at positions that the mask shows, (shown, ...); any other value as it is."""
    at = positions_in(leaf.shape, mask.shape, last) if isinstance(leaf, torch.Tensor) else None
    if at is None:
        return leaf
    shown = mask[..., at.start : at.stop].to(leaf.device) != 0
    return leaf.movedim(at.dim, mask.dim() - 1)[shown]

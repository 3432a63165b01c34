"""Whether inputs of a size are refused for the size or for their values, which are cut or repeated with it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping

import torch

from exportdoctor.report.wording.size_domains import MARKS_KEPT, numbers_all
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.input_objects import flatten_inputs
from exportdoctor.worker.domain.sized_inputs import Place, SizedInputs

_ON_VALUES = re.compile(r"Runtime assertion failed for expression .*\bz?uf?\d+")
"""torch's assertions on symbols without a size of an input behind them."""
_NUMBERS = (1, 0)


def assertions_on_values(holder: torch.nn.Module) -> frozenset[str]:
    """The messages of a program's assertions on the values of a tensor."""
    graphs = [one.graph for one in holder.modules() if isinstance(one, torch.fx.GraphModule)]
    calls = [node for graph in graphs for node in graph.nodes if node.target is torch.ops.aten._assert_async.msg]
    return frozenset(str(node.args[1]) for node in calls if len(node.args) > 1)


def is_about_values(message: str, asserted: frozenset[str]) -> bool:
    """Whether a program refused inputs by an assertion on values: with others of the same sizes it may answer."""
    return _ON_VALUES.search(message) is not None or any(text in message for text in asserted if text)


def with_other_numbers(inputs: SizedInputs, sizes: Mapping[Place, int]) -> Iterator[tuple[str, Inputs]]:
    """Inputs of these sizes with other whole numbers, each with words for them: as many places marked as in the
    example, where a mask has only so many; then all one and all zero, as a length or an index fits every size.

    Numbers that describe a size stay as they are.
    """
    if (made := _with_marks_kept(inputs, sizes)) is not None:
        yield MARKS_KEPT, made
    describing = {one.by for one in inputs.described}
    for number in _NUMBERS:
        leaves, layout = flatten_inputs(inputs.resize(sizes))
        at = [place for place, leaf in enumerate(leaves) if _has_whole_numbers(leaf) and place not in describing]
        if not at:
            return
        for place in at:
            leaves[place] = torch.full_like(leaves[place], number)
        yield numbers_all(number), layout.unflatten(leaves)


def _with_marks_kept(inputs: SizedInputs, sizes: Mapping[Place, int]) -> Inputs | None:
    """Inputs of these sizes in which as many places are marked, by the rarer of zero and one, as in the example; None
    where none are, or the sizes have no room for them."""
    leaves, layout = flatten_inputs(inputs.resize(sizes))
    describing, changed = {one.by for one in inputs.described}, False
    wanted: dict[tuple[int, int], list[Place]] = {}
    for place, size in sizes.items():
        leaf, dimension = place
        if dimension is not None and leaf not in describing and _has_whole_numbers(inputs.leaves[leaf], flags=True):
            wanted.setdefault((inputs.size_at(place), size), []).append(place)
    for (_, size), places in wanted.items():
        marked = [_find_marks(inputs.leaves[leaf], dimension) for leaf, dimension in places if dimension is not None]
        kept = _positions(functools.reduce(torch.logical_or, marked), size)
        if kept is None:
            continue
        for leaf, dimension in places:
            assert dimension is not None
            grown, index = leaves[leaf], kept.to(leaves[leaf].device)
            source = inputs.leaves[leaf]
            if all(grown.shape[other] == source.shape[other] for other in range(source.dim()) if other != dimension):
                leaves[leaf], changed = source.index_select(dimension, index), True
    made: Inputs = layout.unflatten(leaves)
    return made if changed else None


def _find_marks(leaf: torch.Tensor, dimension: int) -> torch.Tensor:
    """Where along the dimension zeros and ones have the rarer of the two; nowhere for other numbers."""
    values = leaf.detach().cpu().to(torch.int64).movedim(dimension, 0)
    values = values.reshape(len(values), -1)
    if not ((values == 0) | (values == 1)).all():
        return torch.zeros(len(values), dtype=torch.bool)
    ones = int(values.sum())
    rarer = 1 if 2 * ones <= values.numel() else 0
    found: torch.Tensor = (values == rarer).any(1)
    return found


def _positions(marked: torch.Tensor, size: int) -> torch.Tensor | None:
    """So many positions in their order, all marked ones among them once; the last of the others may stand often."""
    others = (~marked).nonzero().flatten()
    room = size - int(marked.sum())
    if not marked.any() or room < 0 or (room and not len(others)):
        return None
    filling = others[torch.arange(room).clamp(max=len(others) - 1)]
    return torch.cat([marked.nonzero().flatten(), filling]).sort().values


def _has_whole_numbers(leaf: object, *, flags: bool = False) -> bool:
    if not isinstance(leaf, torch.Tensor) or (leaf.dtype == torch.bool and not flags):
        return False
    return not leaf.is_floating_point() and not leaf.is_complex() and leaf.dim() > 0

"""Whether inputs of a size are refused for the size or for their values, which are cut or repeated with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch

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


def with_other_numbers(inputs: SizedInputs, sizes: Mapping[Place, int]) -> Iterator[tuple[int, Inputs]]:
    """Inputs of these sizes whose whole numbers are all one, then all zero: a length or an index fits every size then.

    Numbers that describe a size stay as they are.
    """
    describing = {one.by for one in inputs.described}
    for number in _NUMBERS:
        leaves, layout = flatten_inputs(inputs.resize(sizes))
        at = [place for place, leaf in enumerate(leaves) if _has_whole_numbers(leaf) and place not in describing]
        if not at:
            return
        for place in at:
            leaves[place] = torch.full_like(leaves[place], number)
        yield number, layout.unflatten(leaves)


def _has_whole_numbers(leaf: object) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.dtype == torch.bool:
        return False
    return not leaf.is_floating_point() and not leaf.is_complex() and leaf.dim() > 0

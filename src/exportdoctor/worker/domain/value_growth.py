"""How large the values of a run become as sizes grow: measured at the example's sizes and at twice these."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import run_calls
from exportdoctor.torch_internals.tracing_modes import dispatch_mode_class
from exportdoctor.torch_internals.trees import tree_leaves

_LARGEST = 2**25
"""Elements that a value of a run may have."""
_MOST_WORK = 2**29
"""The same if the work grows with the square of a size, as attention does without such a value."""


@dataclass(frozen=True, kw_only=True)
class ValueGrowth:
    """`largest`: elements of the largest value at twice the example's size; it grows with this `power` of the size."""

    largest: float
    power: float = 1.0

    def is_too_large(self, factor: float) -> bool:
        """Whether a run at `factor` times the example's size may hold values of too many elements."""
        more = factor / 2
        return self.largest * more**self.power > _LARGEST or self.largest * more ** max(2.0, self.power) > _MOST_WORK


def measure_growth(module: torch.nn.Module, example: Inputs, twice: Inputs) -> ValueGrowth:
    """From a run of the module on each; without bound where one fails."""
    found = []
    for inputs in (example, twice):
        elements = _LargestValue()

        def run(given: Inputs, elements: Any = elements) -> Any:
            with elements:
                return module(*given[0], **given[1])

        try:
            run_calls(module, [inputs], how=run)
        except Exception:  # eager refuses it or lacks memory: how it grows is unknown, so nothing larger is tried
            return ValueGrowth(largest=float("inf"))
        found.append(elements.found)
    return ValueGrowth(largest=found[1], power=max(1.0, math.log2(max(found[1], 1) / max(found[0], 1))))


class _LargestValue(dispatch_mode_class()):  # type: ignore[misc]
    """Counts the elements of the largest value that an operator gives."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [one.numel() for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        self.found = max(self.found, *sizes, 0)
        return result

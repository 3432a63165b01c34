"""Memory that is allocated without values, filled in several ways: a result that is the same each time does not follow
from it."""

from __future__ import annotations

from typing import Any

from exportdoctor.targets.eager import same_values
from exportdoctor.torch_internals.trees import tree_flatten

FILLS = ("largest", "smallest", "zero", "nan")
"""Ways to fill memory. Values on both sides of any bound, and the one that compares with none."""

_NUMBERS = (bool, int, float, str, type(None))


def value_of(fill: str, dtype: Any) -> Any:
    """The value that fills tensors of that dtype."""
    import torch

    if dtype == torch.bool:
        return fill == "largest"
    if not (dtype.is_floating_point or dtype.is_complex):
        limits = torch.iinfo(dtype)
        return {"largest": limits.max, "smallest": limits.min}.get(fill, 0)
    bounds = torch.finfo(dtype)
    return {"largest": bounds.max, "smallest": bounds.min, "nan": float("nan")}.get(fill, 0.0)


def is_same_result(one: Any, other: Any) -> bool:
    """Whether two results have the same structure, and in it the same values."""
    import torch

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return same_values(a, b)
        return a is b or (type(a) is type(b) and type(a) in _NUMBERS and a == b)

    (left, layout), (right, other_layout) = tree_flatten(one), tree_flatten(other)
    return layout == other_layout and all(same(a, b) for a, b in zip(left, right, strict=True))

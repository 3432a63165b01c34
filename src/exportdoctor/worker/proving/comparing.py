"""What a program computed beside what eager computed: the only place that decides whether their numbers agree here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from exportdoctor.core.outcome import Agreement

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Of the largest value of eager's output, at least of one."""

LARGEST = sys.float_info.max
"""Stands for infinity, which JSON cannot say."""

_SMALL = 1e-3
"""Elements below this share of the largest have no relative difference worth telling."""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of an output, in pytree's order; what is no tensor is the same in every program."""
    return [leaf.detach() for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def agreement(title: str, answers: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> Agreement:
    """Tensor by tensor; told is the one that fits worst."""
    if len(answers) != len(wanted):
        return Agreement(inputs=title, trouble=f"{len(answers)} outputs, and eager gives {len(wanted)}")
    found = []
    for number, (one, other) in enumerate(zip(answers, wanted, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            trouble = f"output {number} is {_kind(one)}, and eager gives {_kind(other)}"
            return Agreement(inputs=title, trouble=trouble)
        absolute, relative, allowed = difference(one, other)
        found.append(Agreement(inputs=title, max_abs=absolute, max_rel=relative, tolerance=allowed))
    worst = max(
        found, key=lambda row: (not row.holds, row.max_abs / row.tolerance if row.tolerance else 0.0), default=None
    )
    return worst or Agreement(inputs=title)


def difference(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float, float]:
    """The largest absolute and relative difference, and what is allowed of the first. Whole numbers must be equal."""
    one, other = one.detach().cpu(), other.detach().cpu()
    if not other.is_floating_point():
        return float((one != other).sum()), 0.0, 0.0
    allowed = TOLERANCE.get(other.dtype, TOLERANCE[torch.float32])
    if other.numel() == 0:
        return 0.0, 0.0, allowed
    one, other = one.to(torch.float64), other.to(torch.float64)
    same = (one == other) | (one.isnan() & other.isnan())
    apart = torch.where(same, 0.0, (one - other).abs()).nan_to_num(nan=float("inf"))
    sizes = other.abs()[other.isfinite()]
    largest = float(sizes.max()) if sizes.numel() else 0.0
    seen = other.isfinite() & (other.abs() > _SMALL * largest)
    relative = (apart / other.abs())[seen]
    worst = (float(apart.max()), float(relative.max()) if relative.numel() else 0.0)
    return min(worst[0], LARGEST), min(worst[1], LARGEST), allowed * max(1.0, largest)


def raised(title: str, error: BaseException) -> Agreement:
    """The row of a program that raised."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return Agreement(inputs=title, trouble=f"{type(error).__name__}: {lines[0][:300] if lines else ''}")


def _kind(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"

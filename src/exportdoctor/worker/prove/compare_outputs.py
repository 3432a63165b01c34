"""Compares the outputs of a program with those of eager, with a tolerance for each dtype."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.outcome import Agreement

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Relative to the largest absolute value of eager's output, or to _LEAST if that is smaller."""

_LEAST = 1e-2
"""Intermediate values are about one even if the outputs are smaller, and so is their rounding."""

LARGEST = sys.float_info.max
"""In place of infinity, which JSON does not have."""

_SMALL = 1e-3
"""Elements below this share of the largest are left out of the relative difference."""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of an output, in pytree's order; what is no tensor is the same in every program."""
    return [leaf.detach() for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def compare_outputs(title: str, answers: Sequence[Any], wanted: Sequence[Any]) -> Agreement:
    """The agreement of the tensor that fits worst. Leaves that are no tensors must be equal."""
    if len(answers) != len(wanted):
        return Agreement(inputs=title, trouble=f"{len(answers)} outputs, and eager gives {len(wanted)}")
    found = []
    for number, (one, other) in enumerate(zip(answers, wanted, strict=True)):
        if not _alike(one, other):
            trouble = f"output {number} is {_kind(one)}, and eager gives {_kind(other)}"
            return Agreement(inputs=title, trouble=trouble)
        if isinstance(other, torch.Tensor):
            if _says_nothing(other):
                return Agreement(
                    inputs=title, trouble=f"output {number} of eager is nan throughout: nothing to compare"
                )
            absolute, relative, allowed = largest_difference(one, other)
            found.append(Agreement(inputs=title, max_abs=absolute, max_rel=relative, tolerance=allowed))
    return max(found, key=_misfit, default=Agreement(inputs=title))


def _says_nothing(value: torch.Tensor) -> bool:
    """Whether every value is nan; a wrong program may give the same."""
    return value.is_floating_point() and value.numel() > 0 and bool(value.isnan().all())


def _misfit(row: Agreement) -> tuple[bool, float]:
    return not row.holds, row.max_abs / row.tolerance if row.tolerance else 0.0


def _alike(one: Any, other: Any) -> bool:
    """Whether they can be compared number by number, or are equal where there is nothing to compare."""
    if isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and one.shape == other.shape and one.dtype == other.dtype
    if type(one) is not type(other):
        return False
    try:
        return bool(one == other)
    except Exception:
        return one is other


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float, float]:
    """The largest absolute and relative difference, and the tolerance for the first. Whole numbers must be equal."""
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
    return min(worst[0], LARGEST), min(worst[1], LARGEST), allowed * max(_LEAST, largest)


def failed_run(title: str, error: BaseException) -> Agreement:
    """The row of a program that raised."""
    return Agreement(inputs=title, trouble=f"{type(error).__name__}: {first_line(error, 300)}")


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"{value!r:.60}"

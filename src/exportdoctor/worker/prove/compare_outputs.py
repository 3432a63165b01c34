"""Compares the outputs of a program with those of eager, element by element."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from math import isnan
from typing import Any

import torch

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.targets.eager import CallResult
from exportdoctor.torch_internals.tensor_subclasses import as_plain_tensor
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.prove.allowed_error import RELATIVE, allowed_where_computed
from exportdoctor.worker.prove.quick_difference import MANY, SMALLEST_SCALE, QuickDifference, find_quick_difference

LARGEST = sys.float_info.max
"""In place of infinity, which JSON does not have."""

_BYTES_OF_ELEMENT = 64
"""What comparing takes of a card, in float64."""

_SMALL = 1e-3
"""Elements below this share of the largest are left out of the relative difference."""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of an output, in pytree's order."""
    return [as_plain_tensor(leaf).detach() for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def compare_outputs(title: str, answers: Sequence[Any], wanted: Sequence[Any]) -> Agreement:
    """The agreement of the tensor that fits worst; infinities and NaN must be at the same places. Leaves that are no
    tensors must be equal.

    A tensor that is smaller than `SMALLEST_SCALE` throughout is held to its own size: whether rounding of larger
    numbers inside moves it so far has to be asked (`rounding.py`).
    """
    if len(answers) != len(wanted):
        return Agreement(inputs=title, trouble=f"{len(answers)} outputs, and eager gives {len(wanted)}")
    found = []
    pairs = zip(map(as_plain_tensor, answers), map(as_plain_tensor, wanted), strict=True)
    for number, (one, other) in enumerate(pairs):
        if not alike(one, other):
            trouble = f"output {number} is {_kind(one)}, and eager gives {_kind(other)}"
            return Agreement(inputs=title, trouble=trouble)
        if isinstance(other, torch.Tensor):
            absolute, relative, allowed = largest_difference(one, other)
            if 0 < absolute <= allowed and (strict := allowed_by_own_size(other)) < absolute:
                allowed = strict
            found.append(Agreement(inputs=title, max_abs=absolute, max_rel=relative, tolerance=allowed))
    return max(found, key=_misfit, default=Agreement(inputs=title))


def allowed_by_own_size(wanted: torch.Tensor, share: float | None = None) -> float:
    """What an output that is small throughout allows by its own size; infinity for any other. `share` is as in
    `largest_difference`."""
    wanted = _as_real(as_plain_tensor(wanted).detach())
    if not wanted.is_floating_point():
        return float("inf")
    low, high = torch.aminmax(wanted if wanted.dtype in RELATIVE else wanted.to(torch.float32))
    most = max(-float(low), float(high))
    if isnan(most):
        most = float(wanted.to(torch.float64).abs().nan_to_num(nan=0.0, posinf=float("inf")).max())
    share = RELATIVE.get(wanted.dtype, RELATIVE[torch.float32]) if share is None else share
    return share * most if most < SMALLEST_SCALE else float("inf")


def least_allowed(outputs: Sequence[torch.Tensor]) -> float:
    """What these outputs would be allowed to differ by if they were small, and came of numbers near one."""
    kinds = [leaf.dtype.to_real() if leaf.is_complex() else leaf.dtype for leaf in outputs]
    return max((RELATIVE[kind] * SMALLEST_SCALE for kind in kinds if kind in RELATIVE), default=0.0)


def same_outputs(one: CallResult, other: CallResult) -> bool:
    """Whether the outputs of one call agree with those of the other."""
    return compare_outputs("", tensors_in(one.output), tensors_in(other.output)).holds


def are_nan(values: Sequence[Any]) -> list[bool]:
    """Of each tensor that has elements, whether all of them are NaN; a wrong program may give the same."""
    tensors = (as_plain_tensor(value) for value in values if isinstance(value, torch.Tensor))
    return [bool(as_strided(tensor).isnan().all()) for tensor in tensors if tensor.numel()]


def _misfit(row: Agreement) -> tuple[bool, float]:
    return not row.holds, row.max_abs / row.tolerance if row.tolerance else 0.0


def alike(one: Any, other: Any) -> bool:
    """Whether they can be compared number by number, or are equal where there is nothing to compare."""
    if isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and one.shape == other.shape and one.dtype == other.dtype
    if type(one) is not type(other):
        return False
    try:
        return bool(one == other) or bool(one != one and other != other)  # NaN
    except Exception:
        return one is other


def largest_difference(
    one: torch.Tensor, other: torch.Tensor, *, share: float | None = None
) -> tuple[float, float, float]:
    """The largest absolute and relative difference of `one` from `other`, and what is allowed of the first.

    Every element is held to `allowed_error` with this share. Where one is beyond it, the absolute difference and the
    allowance are that element's, so that the first exceeds the second; else they are those of the element that differs
    most, fill values left out. Whole numbers and truth values must be equal: the first number counts the elements that
    are not.
    """
    one, other = (as_plain_tensor(value).detach() for value in (one, other))
    if one.device == other.device and _fits_on_card(other):
        with suppress(torch.OutOfMemoryError):
            return _largest_difference(one, other, share)
    return _largest_difference(one.cpu(), other.cpu(), share)


def _fits_on_card(value: torch.Tensor) -> bool:
    """Whether it is on a GPU that has several times the memory free that comparing it there takes."""
    if not value.is_cuda or value.layout != torch.strided or value.dtype not in RELATIVE:
        return False
    return 4 * _BYTES_OF_ELEMENT * value.numel() <= torch.cuda.mem_get_info(value.device)[0]


def _largest_difference(one: torch.Tensor, other: torch.Tensor, share: float | None) -> tuple[float, float, float]:
    one, other = _as_real(one), _as_real(other)
    if not other.is_floating_point():
        return float((one != other).sum()), 0.0, 0.0
    if other.numel() == 0:
        return 0.0, 0.0, RELATIVE.get(other.dtype, RELATIVE[torch.float32]) * SMALLEST_SCALE
    if other.numel() >= MANY:
        quick = find_quick_difference(one, other, RELATIVE.get(other.dtype, 0.0) if share is None else share)
        if quick is not None:
            return quick.absolute, _quick_share(quick), quick.allowed
    return largest_difference_by_element(one, other, share)


def largest_difference_by_element(
    one: torch.Tensor, other: torch.Tensor, share: float | None = None
) -> tuple[float, float, float]:
    """The same of floats, in float64."""
    allowed, computed = (found.flatten() for found in allowed_where_computed(other, share))
    one, other = one.to(torch.float64).flatten(), other.to(torch.float64).flatten()
    same = (one == other) | (one.isnan() & other.isnan())
    apart = torch.where(same, 0.0, (one - other).abs()).nan_to_num(nan=float("inf"))
    beyond = apart > allowed
    shown = torch.where(beyond, apart / allowed, 0.0) if bool(beyond.any()) else torch.where(computed, apart, 0.0)
    worst = int(shown.argmax()) if bool(shown.any()) else 0
    return min(float(apart[worst]), LARGEST), _largest_share(apart, other, computed), float(allowed[worst])


def _largest_share(apart: torch.Tensor, other: torch.Tensor, computed: torch.Tensor) -> float:
    """The largest difference over eager's value, of computed elements that are not small."""
    sizes = torch.where(computed, other.abs(), 0.0)
    seen = sizes > _SMALL * sizes.max()
    return min(float(torch.where(seen, apart / sizes, 0.0).max()), LARGEST)


def _quick_share(quick: QuickDifference) -> float:
    if not quick.absolute:
        return 0.0
    seen = quick.sizes > _SMALL * quick.sizes.max()
    return min(float(torch.where(seen, quick.apart.abs() / quick.sizes, 0.0).max()), LARGEST)


def as_strided(value: torch.Tensor) -> torch.Tensor:
    """The tensor without sparseness, its numbers if it is quantized, those of all its parts if it is nested."""
    if value.is_nested:
        return torch.cat([part.reshape(-1) for part in value.unbind()])
    value = value.dequantize() if value.is_quantized else value
    return value if value.layout == torch.strided else value.to_dense()


def _as_real(value: torch.Tensor) -> torch.Tensor:
    value = as_strided(value)
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def failed_run(title: str, error: BaseException) -> Agreement:
    """The row of a program that raised."""
    return Agreement(inputs=title, trouble=f"{type(error).__name__}: {first_line(error, 300)}")


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"{value!r:.60}"

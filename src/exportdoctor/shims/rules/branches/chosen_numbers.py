"""Chooses between two plain numbers in the program: the result is a number again, which only a run of it knows."""

from __future__ import annotations

import math
from typing import Any

from exportdoctor.shims.rules.branches.arm_watch import Unmergeable
from exportdoctor.torch_internals.shape_env import is_surely

_LARGEST = 2**63


def choose_tensor(chosen: Any, one: Any, other: Any) -> Any:
    """One of two tensors of one dtype and size by the tensor `chosen`, bool (). Of two bools by `&` and `|`: ONNX
    Runtime (1.31) has no kernel for a Where of bool."""
    import torch

    if one.dtype is torch.bool:
        return (chosen & one) | (~chosen & other)
    return torch.where(chosen, one, other)


def beside_tensor(value: Any, other: Any) -> Any:
    """A number of Python to be chosen beside the tensor `other` as one of its dtype, which has no dimension, so that it
    is promoted as a number among floats; a tensor as it is.

    Raises Unmergeable for another value, for a tensor with dimensions, and for a number that is none of that dtype.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value
    dtype = other.dtype
    kinds = (int, float) if dtype.is_floating_point else (bool,) if dtype is torch.bool else (int,)
    if other.dim() or dtype.is_complex or type(value) not in kinds or not _fits(value):
        raise Unmergeable(f"one arm gives a tensor, the other {value!r:.40}")
    made = torch.full((), value, dtype=dtype, device=other.device)
    if not _is_exact(value, dtype):
        raise Unmergeable(f"one arm gives a tensor of {dtype}, the other {value!r:.40}, which that cannot be")
    return made


def _is_exact(value: Any, dtype: Any) -> bool:
    """Whether a tensor of that dtype can have this number; of 32 bits, to which torch rounds a number of Python beside
    such a tensor, one near to it. By arithmetic of Python alone: a tensor would be traced."""
    import torch

    if dtype is torch.bool:
        return True
    if not dtype.is_floating_point:
        return bool(torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max)
    limits = torch.finfo(dtype)
    if value == 0 or not math.isfinite(value):
        return True
    if dtype is torch.float32:
        return bool(limits.tiny <= abs(value) <= limits.max)
    fraction, _ = math.frexp(value)
    whole = fraction * 2 / limits.eps  # eps is the last of its binary digits beside 1
    return bool(float(value) == value and limits.tiny <= abs(value) <= limits.max and whole == math.floor(whole))


def choose_number(chosen: Any, one: Any, other: Any) -> Any:
    """The one that the tensor `chosen`, bool (), says: as Python's own number, so that it is promoted as one.

    Raises Unmergeable where they are no numbers of one type. Of two whole numbers the program knows the range.
    """
    import torch

    if _is_same(one, other):
        return one
    kinds = {bool: torch.bool, torch.SymBool: torch.bool, int: torch.int64, torch.SymInt: torch.int64,
             float: torch.float64, torch.SymFloat: torch.float64}  # fmt: skip
    dtypes = [kinds.get(type(value)) for value in (one, other)]
    if dtypes[0] is None or dtypes[0] is not dtypes[1] or not all(map(_fits, (one, other))):
        raise Unmergeable(f"the arms give {one!r:.40} and {other!r:.40}")
    left, right = (_as_tensor(value, dtypes[0], chosen.device) for value in (one, other))
    number = choose_tensor(chosen, left, right).item()
    if dtypes[0] is torch.int64:
        _state_range(number, one, other)
    return number


def _is_same(one: Any, other: Any) -> bool:
    """Whether they are one plain value; 0.0 and -0.0 are two."""
    plain = type(one) is type(other) and isinstance(one, bool | int | float | str | type(None))
    return plain and one == other and (not isinstance(one, float) or math.copysign(1, one) == math.copysign(1, other))


def _fits(number: Any) -> bool:
    """Whether it is no whole number of more than 64 bits."""
    return not isinstance(number, int) or -_LARGEST <= number < _LARGEST


def _as_tensor(number: Any, dtype: Any, device: Any) -> Any:
    import torch

    if isinstance(number, torch.SymBool):
        return torch.scalar_tensor(torch.sym_ite(number, 1, 0), dtype=torch.int64, device=device) != 0
    return torch.full((), number, dtype=dtype, device=device)


def _state_range(number: Any, one: Any, other: Any) -> None:
    """Tell torch what follows from the two: so it may be a size."""
    import torch

    if type(one) is int and type(other) is int:
        torch._check(number >= min(one, other))
        torch._check(number <= max(one, other))
    elif all(is_surely(value >= 0) for value in (one, other)):
        torch._check(number >= 0)

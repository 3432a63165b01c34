"""The difference of two values in float32, in a few passes, where nothing keeps it from being told so.

That is where all is finite, nothing is a fill value and nothing beyond its bound: there `allowed_error`, which counts
every element, allows the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, ldexp, prod

import numpy
import torch

SMALLEST_SCALE = 1e-2
"""Rounding inside a network happens on numbers near one, also where an output is smaller."""

FEWEST = 8
"""A slice of fewer elements than this may be small by chance; the whole output is its scale then."""

LARGE = 13
"""The binary order of magnitude from which a value may be a fill value among few others."""

GAP = 7
"""Empty binary orders of magnitude (a factor of 128) that separate fill values from computed ones."""

_UNITS, _UNITS_OF_HALVES = 64, 2
"""By so many units in the last place copies may differ, and by so many of float16 and bfloat16."""

_MOST_COPIES = 0.9

MANY = 4096
"""From so many elements on it is worth to look for the quick way."""

_SHORT = (torch.float32, torch.bfloat16, torch.float16)
"""Whose values are float32's."""


@dataclass(frozen=True, kw_only=True)
class QuickDifference:
    """The largest absolute difference of `found` from `wanted`, and what is allowed of it at that element. `apart` are
    the differences, `sizes` the magnitudes of `wanted`, in memory that the next call may write to."""

    absolute: float
    allowed: float
    apart: torch.Tensor
    sizes: torch.Tensor


def new_memory(_: str, like: torch.Tensor) -> torch.Tensor:
    """Memory for a float32 tensor of this shape."""
    return torch.empty(like.shape, dtype=torch.float32, device=like.device)


def find_quick_difference(
    found: torch.Tensor,
    wanted: torch.Tensor,
    share: float,
    *,
    memory: Callable[[str, torch.Tensor], torch.Tensor] = new_memory,
) -> QuickDifference | None:
    """Of values of the same shape and dtype, on one device. None where it has to be looked for element by element."""
    if found.dtype != wanted.dtype or wanted.dtype not in _SHORT or found.device != wanted.device:
        return None
    within = copies_within(wanted.dtype)
    found, wanted = (value.detach().to(torch.float32) for value in (found, wanted))
    apart = torch.sub(found, wanted, out=memory("apart", wanted))
    low, high = (float(one) for one in torch.aminmax(apart))
    if not isfinite(largest := abs(max(-low, high, 0.0))):
        return None
    sizes = torch.abs(wanted, out=memory("sizes", wanted))
    scales = _plain_scales(sizes, within)
    if scales is None:
        return None
    if largest > share * max(min(float(one.min()) for one in scales), SMALLEST_SCALE):
        scale = functools.reduce(torch.minimum, scales)
        if bool((apart.abs() > share * torch.maximum(sizes, scale).clamp_min(SMALLEST_SCALE)).any()):
            return None
    place = _place_of(apart, low, high) if largest else (0,) * sizes.dim()
    around = min(float(one.expand(sizes.shape)[place]) for one in scales)
    allowed = share * max(float(sizes[place]), around, SMALLEST_SCALE)
    return QuickDifference(absolute=largest, allowed=allowed, apart=apart, sizes=sizes)


def _place_of(apart: torch.Tensor, low: float, high: float) -> tuple[int, ...]:
    """The indices of the first element whose difference is largest; `low` and `high` are the ends of all."""
    if apart.is_cuda:
        ends = [int(find()) for end, find in ((high, apart.argmax), (-low, apart.argmin)) if end == max(-low, high)]
    else:
        array = apart.numpy()  # torch's own argmax takes as long as all the rest (2.13, CPU)
        ends = [int(find()) for end, find in ((high, array.argmax), (-low, array.argmin)) if end == max(-low, high)]
    return tuple(int(one) for one in numpy.unravel_index(min(ends), apart.shape))


def plain_scales(wanted: torch.Tensor) -> list[torch.Tensor] | None:
    """The largest magnitude of a value, in float32, and those of the slices that give an element its scale, where all
    is finite and nothing is a fill value. None where that is not so, or is not known in a few passes."""
    if wanted.dtype not in _SHORT or not wanted.numel():
        return None
    return _plain_scales(wanted.detach().to(torch.float32).abs(), copies_within(wanted.dtype))


def _plain_scales(sizes: torch.Tensor, within: float) -> list[torch.Tensor] | None:
    sizes = without_copies(sizes, within)
    whole, scales = slice_scales(sizes)
    if not isfinite(whole) or may_hold_fill_values(sizes, whole):
        return None
    return [sizes.new_tensor(whole), *scales]


def is_all_computed(values: torch.Tensor) -> bool:
    """Whether all is finite and nothing is a fill value, as far as a few passes tell; False where they do not."""
    if values.dtype not in _SHORT or values.numel() < MANY:
        return False
    sizes = values.detach().to(torch.float32).abs()
    largest = float(sizes.max())
    return isfinite(largest) and not may_hold_fill_values(sizes, largest)


_SAMPLE = 1 << 13


def may_hold_fill_values(sizes: torch.Tensor, largest: float) -> bool:
    """Whether `is_fill_value` could find one among these finite float32 magnitudes; `largest` is the largest.

    It cannot where a sample of them, the largest and the smallest leave no gap between binary orders: more of them
    only make gaps smaller. Else they are counted.
    """
    flat = sizes.flatten()
    smallest = flat.min()
    if not smallest:
        smallest = torch.where(flat > 0, flat, largest).min()
    ends = torch.stack((smallest, flat.new_tensor(largest)))
    counts = _order_counts(torch.cat((flat[:: max(1, flat.numel() // _SAMPLE)], ends)))
    gaps = _gaps(counts)
    if not gaps:
        return False
    lowest, above = gaps[0]
    if len(gaps) == 1 and int(counts[1 : lowest + 1].sum()) == 1 and above - _BIAS <= LARGE:
        # where the order above begins; what is below is too few to be the computed ones
        least = ldexp(1.0, above - _BIAS - 1)
        if _count_nonzero(flat < least) < FEWEST:
            return False
    counts = _order_counts(flat)
    if int(counts[0]) != flat.numel() - _count_nonzero(flat):  # numbers below the normal ones have no order here
        return True
    return any(int(counts[: below + 1].sum()) >= FEWEST or above - _BIAS > LARGE for below, above in _gaps(counts))


def _count_nonzero(values: torch.Tensor) -> int:
    return int(values.count_nonzero() if values.is_cuda else numpy.count_nonzero(values.numpy()))


_BIAS = 126
"""Of the exponents in float32, as `frexp` counts them."""


def _order_counts(sizes: torch.Tensor) -> torch.Tensor:
    """How many have each binary order; zeros come first."""
    return torch.bincount(sizes.view(torch.int32) >> 23, minlength=1)


def _gaps(counts: torch.Tensor) -> list[tuple[int, int]]:
    """The orders below and above each gap."""
    present = (counts[1:].nonzero().flatten() + 1).tolist()
    return [(below, above) for below, above in pairwise(present) if above - below > GAP]


def copies_within(dtype: torch.dtype) -> float:
    """The share by which copies may differ, which kernels compute in other orders at the ends of a tensor."""
    return (_UNITS_OF_HALVES if torch.finfo(dtype).bits < 32 else _UNITS) * torch.finfo(dtype).eps


def without_copies(sizes: torch.Tensor, within: float) -> torch.Tensor:
    """The magnitudes, of size one along each dimension along which all of them are equal but for a share of `within`:
    many copies of a small number say no more of the numbers that it was computed from than one does."""
    for dim in range(sizes.dim()):
        if sizes.shape[dim] > 1 and sizes.numel():
            first = sizes.narrow(dim, 0, 1)
            if _are_copies(first, sizes.narrow(dim, 1, 1), within) and _are_copies(first, sizes, within):
                sizes = first
    return sizes


def _are_copies(first: torch.Tensor, sizes: torch.Tensor, within: float) -> bool:
    """Whether nearly all are equal to the first; the others, which may be sums that nearly vanish, within that share of
    the largest."""
    apart = (sizes - first).abs()
    if not bool((apart <= within * first.abs().max()).all()):
        return False
    return int((apart <= within * first.abs()).sum()) >= _MOST_COPIES * apart.numel()


def slice_scales(sizes: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    """The largest of these magnitudes, and those of the slices that give an element its scale, where all are counted.

    Slices of fewer than eight elements have the whole output's scale, and are left out.
    """
    if sizes.dim() < 2:
        return float(sizes.max()), []
    every = tuple(range(sizes.dim()))
    rows = sizes.amax(-1, keepdim=True)
    scales = [rows] if sizes.shape[-1] >= FEWEST else []
    for dim in every:
        others = tuple(other for other in every if other != dim)
        if prod(sizes.shape[other] for other in others) >= FEWEST:
            scales.append((sizes if dim == every[-1] else rows).amax(others, keepdim=True))
    return float(rows.max()), scales

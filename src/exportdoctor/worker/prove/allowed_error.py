"""How far each element of an output may be from eager's, from the values around it alone.

Two programs that compute the same function in another order differ by rounding: a share of the numbers that entered
the computation of that element. Those are not known here, so their size is estimated from the slices of the output to
which the element belongs (its row, its channel, its sample). One masked or overflowing value says nothing about the
rest, so fill values (`finfo.min`, -1e9, -1e4) are left out of the estimate and are held to their own size.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from math import isfinite, ldexp, prod

import numpy
import torch

RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The share of an element's scale by which a program may differ, by the dtype of eager's output.

About a thousand units in the last place: reordered sums over thousands of terms, through tens of layers.
"""

SMALLEST_SCALE = 1e-2
"""Rounding inside a network happens on numbers near one, also where an output is smaller."""

_FEWEST = 8
"""A slice of fewer elements than this may be small by chance; the whole output is its scale then."""

_LARGE = 13
"""The binary order of magnitude from which a value may be a fill value among few others."""

_LOWEST = 1100
"""No double has an exponent below minus this."""

_FILL_UNITS = 64
"""How many units in the last place a fill value may be off: a small score may have been added to it."""

_GAP = 7
"""Empty binary orders of magnitude (a factor of 128) that separate fill values from computed ones."""


def allowed_error(wanted: torch.Tensor, share: float | None = None) -> torch.Tensor:
    """The largest allowed |difference| of each element of a floating-point `wanted`, as float64 of the same shape.

    It is `share * max(|value|, scale, SMALLEST_SCALE)`, where share is by default `RELATIVE[dtype]`, and scale the
    smallest of the largest computed magnitudes of the slices that hold the element. A fill value may be off by a few
    units in its last place. Zero where `wanted` is not finite: infinities and NaN must be equal.
    """
    return allowed_where_computed(wanted, share)[0]


def allowed_where_computed(wanted: torch.Tensor, share: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """`allowed_error`, and which elements are computed: finite, and no fill values."""
    share = RELATIVE.get(wanted.dtype, RELATIVE[torch.float32]) if share is None else share
    scale = _scale_without_fill_values(wanted)
    sizes = wanted.detach().to(torch.float64).abs()
    if scale is not None:
        return share * torch.maximum(sizes, scale).clamp_min(SMALLEST_SCALE), torch.ones_like(sizes, dtype=torch.bool)
    finite, filled = sizes.isfinite(), is_fill_value(wanted)
    sizes, counted = torch.where(finite, sizes, 0.0), finite & ~filled
    computed = share * torch.maximum(sizes, _scale_of_slices(sizes, counted)).clamp_min(SMALLEST_SCALE)
    constant = _FILL_UNITS * torch.finfo(wanted.dtype).eps * sizes
    return torch.where(filled, constant, torch.where(finite, computed, 0.0)), counted


def is_fill_value(values: torch.Tensor) -> torch.Tensor:
    """Which elements stand for "nothing here": finite, and a factor of 128 or more above all computed ones.

    Where fewer than eight elements would be left as computed, only magnitudes above 8192 count as fill values.
    """
    sizes = values.detach().to(torch.float64).abs()
    seen = sizes.isfinite() & (sizes > 0)
    orders = torch.frexp(torch.where(seen, sizes, 1.0)).exponent.to(torch.int64)
    counts = torch.bincount((orders[seen] + _LOWEST).flatten(), minlength=1)
    present = counts.nonzero().flatten()
    zeros = int((sizes == 0).sum())
    for below, above in reversed(list(zip(present[:-1].tolist(), present[1:].tolist(), strict=True))):
        computed = int(counts[: below + 1].sum()) + zeros
        if above - below > _GAP and (computed >= _FEWEST or above - _LOWEST > _LARGE):
            return seen & (orders >= above - _LOWEST)
    return torch.zeros_like(seen)


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
    if len(gaps) == 1 and int(counts[1 : lowest + 1].sum()) == 1 and above - _BIAS <= _LARGE:
        least = ldexp(
            1.0, above - _BIAS - 1
        )  # where the order above begins; what is below is too few to be the computed ones
        if numpy.count_nonzero(flat.cpu().numpy() < least) < _FEWEST:
            return False
    counts = _order_counts(flat)
    if int(counts[0]) != flat.numel() - numpy.count_nonzero(
        flat.cpu().numpy()
    ):  # numbers below the normal ones have no order here
        return True
    return any(int(counts[: below + 1].sum()) >= _FEWEST or above - _BIAS > _LARGE for below, above in _gaps(counts))


_BIAS = 126
"""Of the exponents in float32, as `frexp` counts them."""


def _order_counts(sizes: torch.Tensor) -> torch.Tensor:
    """How many have each binary order; zeros come first."""
    return torch.bincount(sizes.view(torch.int32) >> 23, minlength=1)


def _gaps(counts: torch.Tensor) -> list[tuple[int, int]]:
    """The orders below and above each gap."""
    present = (counts[1:].nonzero().flatten() + 1).tolist()
    return [(below, above) for below, above in pairwise(present) if above - below > _GAP]


def slice_scales(sizes: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    """The largest of these magnitudes, and those of the slices that give an element its scale, where all are counted.

    Slices of fewer than eight elements have the whole output's scale, and are left out.
    """
    if sizes.dim() < 2:
        return float(sizes.max()), []
    every = tuple(range(sizes.dim()))
    rows = sizes.amax(-1, keepdim=True)
    scales = [rows] if sizes.shape[-1] >= _FEWEST else []
    for dim in every:
        others = tuple(other for other in every if other != dim)
        if prod(sizes.shape[other] for other in others) >= _FEWEST:
            scales.append((sizes if dim == every[-1] else rows).amax(others, keepdim=True))
    return float(rows.max()), scales


def _scale_without_fill_values(wanted: torch.Tensor) -> torch.Tensor | None:
    """`_scale_of_slices` in a few passes, where all is finite and nothing is a fill value. None where that is not so,
    or is not known."""
    if wanted.dtype not in (torch.float32, torch.bfloat16, torch.float16) or not wanted.numel():
        return None
    sizes = wanted.detach().to(torch.float32).abs()
    whole, scales = slice_scales(sizes)
    if not isfinite(whole) or may_hold_fill_values(sizes, whole):
        return None
    return functools.reduce(torch.minimum, scales, sizes.new_tensor(whole)).to(torch.float64)


def _scale_of_slices(sizes: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """For each element the smallest of its slices' largest counted magnitudes: its row, and along each dimension."""
    if not sizes.numel():
        return sizes
    known = torch.where(counted, sizes, 0.0)
    whole = known.max()
    scale = whole.expand(sizes.shape)
    every = tuple(range(sizes.dim()))
    rests = [tuple(other for other in every if other != dim) for dim in every]
    for dims in (*rests, every[-1:]) if sizes.dim() > 1 else ():
        enough = counted.sum(dims, keepdim=True) >= _FEWEST
        scale = torch.minimum(scale, torch.where(enough, known.amax(dims, keepdim=True), whole))
    return scale

"""How far each element of an output may be from eager's, from the values around it alone.

Two programs that compute the same function in another order differ by rounding: a share of the numbers that entered
the computation of that element. Those are not known here, so their size is estimated from the slices of the output to
which the element belongs (its row, its channel, its sample), in which copies are counted once. One masked or
overflowing value says nothing about the rest, so fill values (`finfo.min`, -1e9, -1e4) are left out of the estimate and
are held to their own size.
"""

from __future__ import annotations

import functools

import torch

from exportdoctor.worker.prove.quick_difference import (
    FEWEST,
    GAP,
    LARGE,
    SMALLEST_SCALE,
    copies_within,
    plain_scales,
    without_copies,
)

RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The share of an element's scale by which a program may differ, by the dtype of eager's output.

About a thousand units in the last place: reordered sums over thousands of terms, through tens of layers.
"""

_LOWEST = 1100
"""No double has an exponent below minus this."""

_FILL_UNITS = 64
"""How many units in the last place a fill value may be off: a small score may have been added to it."""


def allowed_error(wanted: torch.Tensor, share: float | None = None) -> torch.Tensor:
    """The largest allowed |difference| of each element of a floating-point `wanted`, as float64 of the same shape.

    It is `share * max(|value|, scale, SMALLEST_SCALE)`, where share is by default `RELATIVE[dtype]`, and scale the
    smallest of the largest computed magnitudes of the slices that hold the element. A fill value may be off by a few
    units in its last place, a small one by what any element may. Zero where `wanted` is not finite: infinities and NaN
    must be equal.
    """
    return allowed_where_computed(wanted, share)[0]


def allowed_where_computed(wanted: torch.Tensor, share: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """`allowed_error`, and which elements are computed: finite, and no fill values."""
    share = RELATIVE.get(wanted.dtype, RELATIVE[torch.float32]) if share is None else share
    scales = plain_scales(wanted)
    sizes = wanted.detach().to(torch.float64).abs()
    if scales is not None:
        scale = functools.reduce(torch.minimum, scales).to(torch.float64)
        return share * torch.maximum(sizes, scale).clamp_min(SMALLEST_SCALE), torch.ones_like(sizes, dtype=torch.bool)
    finite, filled = sizes.isfinite(), is_fill_value(wanted)
    sizes, counted = torch.where(finite, sizes, 0.0), finite & ~filled
    computed = share * torch.maximum(sizes, _scale_of_slices(sizes, counted, copies_within(wanted.dtype))).clamp_min(
        SMALLEST_SCALE
    )
    constant = (_FILL_UNITS * torch.finfo(wanted.dtype).eps * sizes).clamp_min(share * SMALLEST_SCALE)
    return torch.where(filled, constant, torch.where(finite, computed, 0.0)), counted


def is_fill_value(values: torch.Tensor) -> torch.Tensor:
    """Which elements stand for "nothing here": finite, and a factor of 128 or more above all computed ones.

    Where fewer than eight elements would be left as computed, copies counted once, only magnitudes above 8192 count as
    fill values.
    """
    sizes = values.detach().to(torch.float64).abs()
    seen = sizes.isfinite() & (sizes > 0)
    orders = torch.frexp(torch.where(seen, sizes, 1.0)).exponent.to(torch.int64)
    kept = without_copies(sizes, copies_within(values.dtype)) if values.is_floating_point() else sizes
    counted = kept[kept.isfinite() & (kept > 0)]
    counts = torch.bincount((torch.frexp(counted).exponent.to(torch.int64) + _LOWEST).flatten(), minlength=1)
    present = counts.nonzero().flatten()
    zeros = int((kept == 0).sum())
    for below, above in reversed(list(zip(present[:-1].tolist(), present[1:].tolist(), strict=True))):
        computed = int(counts[: below + 1].sum()) + zeros
        if above - below > GAP and (computed >= FEWEST or above - _LOWEST > LARGE):
            return seen & (orders >= above - _LOWEST)
    return torch.zeros_like(seen)


def _scale_of_slices(sizes: torch.Tensor, counted: torch.Tensor, within: float) -> torch.Tensor:
    """For each element the smallest of its slices' largest counted magnitudes: its row, and along each dimension."""
    if not sizes.numel():
        return sizes
    known = torch.where(counted, sizes, 0.0)
    whole = known.max()
    scale = whole.expand(sizes.shape)
    every = tuple(range(sizes.dim()))
    kept = without_copies(torch.where(counted, sizes, -1.0), within)
    known, counted = kept.clamp_min(0), kept >= 0
    rests = [tuple(other for other in every if other != dim) for dim in every]
    for dims in (*rests, every[-1:]) if sizes.dim() > 1 else ():
        enough = counted.sum(dims, keepdim=True) >= FEWEST
        scale = torch.minimum(scale, torch.where(enough, known.amax(dims, keepdim=True), whole))
    return scale

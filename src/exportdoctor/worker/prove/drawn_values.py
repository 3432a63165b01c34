"""Draws floating-point values like those of a tensor: of its mean and spread, larger, smaller, negative, constant.

Infinities, NaN and fill values of masks stay where they are.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from exportdoctor.worker.prove.allowed_error import is_fill_value
from exportdoctor.worker.prove.quick_difference import is_all_computed

FloatDraw = Callable[[torch.Tensor, random.Random], torch.Tensor]


def draw_like(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """Random values of about the mean and spread of those there; a constant gets a spread of its own size, or of one.

    Infinities, NaN and fill values of masks stay.
    """
    computed = None if is_all_computed(seen) else seen.isfinite() & ~is_fill_value(seen)
    values = (seen if computed is None else seen[computed]).to(torch.float64)
    if not values.numel():
        return seen
    mean, spread = float(values.mean()), float(values.std(correction=0))
    if spread <= 1e-6 * abs(mean) or not spread:
        spread = abs(mean) or 1.0
    drawn = (mean + spread * _noise(seen, chance)).to(seen.dtype)
    return drawn if computed is None else torch.where(computed, drawn, seen)


def _noise(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    return torch.randn(seen.shape, generator=generator, dtype=torch.float32).to(seen.device)


def _scale(seen: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.where(seen.isfinite() & ~is_fill_value(seen), seen * factor, seen)


def _enlarge(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return _scale(draw_like(seen, chance), 100.0)


def _shrink(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return _scale(draw_like(seen, chance), 1e-3)


def _negate(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    drawn = draw_like(seen, chance)
    return torch.where(seen.isfinite() & ~is_fill_value(seen), -drawn.abs(), seen)


def _set_constant(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return torch.full_like(seen, chance.choice((0.0, 1.0, -1.0, float(seen.flatten()[0]))))


def _spread_about_zero(seen: torch.Tensor, chance: random.Random) -> torch.Tensor:
    computed = seen.isfinite() & ~is_fill_value(seen)
    most = float(torch.where(computed, seen, 0.0).abs().max()) or 1.0
    return torch.where(computed, (most * _noise(seen, chance)).to(seen.dtype), seen)


EXTREMES = (_enlarge, _spread_about_zero, _negate, _set_constant, _shrink)


def write(leaf: torch.Tensor, draw: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The tensor with drawn values written into it, so that views of it and what it is a view of change along.

    Dimensions that repeat one element are drawn once. A sparse tensor stays as it is.
    """
    if leaf.layout != torch.strided:
        return leaf
    seen = leaf.detach()
    for dim, (size, stride) in enumerate(zip(seen.shape, seen.stride(), strict=True)):
        if size > 1 and stride == 0:
            seen = seen.narrow(dim, 0, 1)
    with torch.no_grad():
        narrow = seen.is_floating_point() and seen.dtype.itemsize == 1  # hardly any operator takes the kinds of float8
        seen.copy_(draw(seen.float() if narrow else seen.clone()))
    return leaf

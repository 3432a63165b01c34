"""What the local names of a function hold at each of its lines, as far as it says whether statements can be moved."""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any

from exportdoctor.shims.rules.clean_values import CleanValues

CLEAN, SETTING, OTHER = 0, 1, 2
"""A clean tensor or a number; what a call may be given besides; what the call might change."""

Kinds = Mapping[str, int]
"""Of local names."""


def note_locals(found: dict[int, Kinds], frame: FrameType, values: CleanValues) -> None:
    """Add what the names hold now, before the line of the frame: of several times the kind that allows the least."""
    kinds = {name: _kind_of(one, values) for name, one in frame.f_locals.items()}
    known = found.get(frame.f_lineno, kinds)
    found[frame.f_lineno] = {name: max(kinds[name], known[name]) for name in kinds.keys() & known.keys()}


def _kind_of(value: Any, values: CleanValues) -> int:
    import torch

    if isinstance(value, torch.Tensor):
        return CLEAN if values.is_clean(value) and not values.reads else SETTING
    if type(value) in (int, float, bool, type(None)):
        return CLEAN
    if isinstance(value, tuple):
        return max((_kind_of(one, values) or SETTING for one in value), default=SETTING)
    known = isinstance(value, str | range | slice | type | torch.dtype | torch.device | torch.nn.Module)
    return SETTING if known or callable(value) or type(value).__name__.endswith("Config") else OTHER

"""What the local names of a function hold at each of its lines, as far as it says whether statements can be moved."""

from __future__ import annotations

import dis
import functools
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

from exportdoctor.shims.rules.hoisting.clean_values import CleanValues

CLEAN, SETTING, OTHER = 0, 1, 2
"""A clean tensor or a number; what a call may be given besides; what the call might change."""

Kinds = Mapping[str, int]
"""Of local names."""

LineKinds = dict[int, dict[int, Kinds]]
"""By the identity of a function's code and the line, before which the names held that. Whoever keeps it keeps the code:
equal code of two files is told apart."""

_LOOPS = frozenset(code for name, code in dis.opmap.items() if name == "FOR_ITER" or "BACKWARD" in name)
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


@functools.lru_cache(maxsize=4096)
def has_loop(code: CodeType) -> bool:
    """Whether a function has a loop or a comprehension of its own."""
    inside = {one.co_name for one in code.co_consts if isinstance(one, CodeType)}
    return not _LOOPS.isdisjoint(code.co_code[::2]) or not _COMPREHENSIONS.isdisjoint(inside)


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

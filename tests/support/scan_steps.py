"""Runs the steps of a scan one after the other, in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def run_in_turn(step: Callable[..., Any], state: Sequence[Tensor], rows: Sequence[Tensor], length: int) -> Any:
    """What a scan means."""
    made = []
    for index in range(length):
        state, outputs = step(state, tuple(one[index] for one in rows))
        made.append(outputs)
    return state, tuple(torch.stack(column) for column in zip(*made, strict=True))

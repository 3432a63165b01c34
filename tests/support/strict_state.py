"""Forwards that strict export takes although the program drops what they keep or catch, and some that are harmless."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_SEEN: dict[str, Any] = {}


class Third(nn.Module):
    """Answers differently at its third call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        return x * 2 if len(self.seen) < 3 else x * 3


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


class Memo(nn.Module):
    """Keeps its first input, outside of itself."""

    def forward(self, x: Tensor) -> Tensor:
        if "x" not in _SEEN:
            _SEEN["x"] = x
        found: Tensor = _SEEN["x"] + x
        return found


class Asserting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        try:
            assert x.min() > 0
        except AssertionError:
            x = x.abs()
        return x.sqrt()


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert x.min() > 0
        return x.sqrt()


class Clamping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = Positive()

    def forward(self, x: Tensor) -> Tensor:
        try:
            found: Tensor = self.child(x)
        except AssertionError:
            found = self.child(x.abs() + 1)
        return found


class Collecting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found, named = [], {}
        for factor in range(3):
            found.append(x * factor)
        named["first"] = found[0]
        return torch.stack(found).sum(0) + named["first"]


class Buffered(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x * self.count


REFUSED: tuple[Callable[[], nn.Module], ...] = (Third, Counter, Memo, Asserting, Clamping)
HARMLESS: tuple[Callable[[], nn.Module], ...] = (Positive, Collecting, Buffered)


class Asking(nn.Module):
    """Answers differently where gradients are recorded."""

    def __init__(self, asks: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.asks = asks

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * self.scale
        return scaled + 1 if self.asks(scaled) else scaled


QUESTIONS: tuple[Callable[[Tensor], bool], ...] = (
    lambda scaled: torch.is_grad_enabled(),
    lambda scaled: scaled.requires_grad,
    lambda scaled: scaled.grad_fn is not None,
    lambda scaled: not scaled.is_leaf,
    lambda scaled: torch.is_inference_mode_enabled(),
)

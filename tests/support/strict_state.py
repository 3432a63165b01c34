"""Forwards that strict export takes although the program drops what they keep or catch, and some that are harmless."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
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


class Defaulted(nn.Module):
    """Keeps its count in the default of an argument."""

    def forward(self, x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
        seen.append(1)
        return x * 2 if len(seen) % 3 else x * 3


def _counting() -> Callable[[Tensor], Tensor]:
    count = 0

    def scale(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x * count

    return scale


class Closed(nn.Module):
    """Keeps its count in a variable of the function around one that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = _counting()

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x)


def _twice(forward: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    calls = [0]

    @wraps(forward)
    def wrapped(self: Any, x: Tensor) -> Tensor:
        calls[0] += 1
        return forward(self, x) * calls[0]

    return wrapped


class Decorated(nn.Module):
    """Its decorator keeps the count."""

    @_twice
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def _scaled(held: list[int], x: Tensor) -> Tensor:
    held.append(1)
    return x * len(held)


class Partial(nn.Module):
    """Calls a partial with an argument that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = partial(_scaled, [])

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x)


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


COUNTING: tuple[Callable[[], nn.Module], ...] = (Third, Counter, Defaulted, Closed, Decorated, Partial)
"""Each call leaves another number, wherever that stands."""
REFUSED: tuple[Callable[[], nn.Module], ...] = (*COUNTING, Memo, Asserting, Clamping)
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

"""Loops of which a program once computed something else than eager, or for which the shim failed by its own fault."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

k = 3
"""Of the file's; a comprehension below has a variable of its own of this name."""


class LargerNumber(nn.Module):
    """A non-strict export replaces `max`, and dynamo took that for `min`."""

    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        y, n, best = x, 10, -1.0
        while y.abs().sum() > 1:
            n = max(n - 3, 1)
            best = max(best, y.max().item())
            y = y * 0.5
        return y * n, best


class EmptyModules(nn.Module):
    """An empty container holds as little as zero does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.range = nn.ModuleList(), range(0)

    def forward(self, x: Tensor) -> Tensor:
        y, n = x, 0
        while y.abs().sum() > 1 and n < 6:
            n += 1
            if self.layers:
                break
            y = y * 0.5 if y.sum() > 1 and not self.range else y * 0.8
        return y


class OwnVariable(nn.Module):
    """The variable of a comprehension is none of the function's."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * k
        while y.abs().sum() > 1:
            y = y * 0.5
            if y.sum() > 2:
                y = torch.stack([y * k for k in (0.1, 0.2)]).sum(0)
            y = y * (k - 2.5)
        return y * k


class Nested(nn.Module):
    """Names that an arm of an arm binds alone."""

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        y, n = x, 0
        while y.abs().sum() > 1 and n < 9:
            n += 1
            if y.sum() > 2:
                if y.max() > 1:
                    t = y * 0.4
                    t = t - 0.01
                else:
                    t = y * 0.8
                y = t
            else:
                v = y - 0.1
                if v.sum() > 0:
                    v = v * 0.5
                y = v * 0.9
        return y, n


class BranchFirst(nn.Module):
    """A branch before the only exit of a loop without a condition."""

    def forward(self, x: Tensor) -> Tensor:
        y, n = x, 0
        while True:
            n += 1
            if y.sum() > 3:
                y = y * 0.5
            y = y * 0.9 - 0.01
            if y.sum() < 1 or n > 20:
                break
        return y


class AroundExit(nn.Module):
    """A loop with an exit in its middle, which is run again by one around it."""

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i in range(3):
            while y.abs().sum() > 1:
                y = y * 0.8
                if y.sum() > 4:
                    break
                y = y - 0.01
            if i == 1:
                break
            y = y + 0.7
        return y


class MixedFlag(nn.Module):
    """`True + True` is 2, and that of tensors is not."""

    def forward(self, x: Tensor) -> Tensor:
        flag: Any
        y, n = x, 0
        while y.abs().sum() < 50 and n < 8:
            flag = (y > 0).any() if y.sum() > 1 else True
            y = y * (flag + flag) + 0.3
            n += 1
        return y


class BecomesFloat(nn.Module):
    """A whole number of the observed steps is none in later ones."""

    def forward(self, x: Tensor) -> Tensor:
        n: float
        y, n = x, 1
        while y.abs().sum() > 1:
            n = min(n * 2, 30.5)
            y = y * 0.5
        return y * n


class Sorted(nn.Module):
    """The list of the function is changed in an arm, by a method that tensors have, too."""

    def forward(self, x: Tensor) -> Tensor:
        values = [3.0, 1.0, 2.0]
        if x.sum() > 0:
            _ = values.sort()
        return x * values[0]


class Around(nn.Module):
    """A branch outside of a loop with a branch."""

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        y, n = x, 0
        if x.sum() > 2:
            y = y * 0.9
        while y.abs().sum() > 0.5 and n < 6:
            n += 1
            y = y * 0.5 if y.sum() > 1 else y * 0.8
        return y, n

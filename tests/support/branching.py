"""A module whose forward branches on a tensor's value, in a file of its own, as the rewriting reads its source."""

from __future__ import annotations

from torch import Tensor, nn


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # noqa: SIM108
            y = x * 2
        else:
            y = x - 1
        return y + 1

"""Loops and choices as operators: what they run may use a dynamic size as often as it likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.torch_internals.loop_operators import plain_tracing, run_steps, run_while

Use = Callable[[Tensor, int], Tensor]
"""What is made of a tensor (batch, 3) and the batch's size."""


class Scanned(nn.Module):
    def __init__(self, use: Use) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[0]

        def step(state: Any, rows: Any) -> Any:
            return [self.use(state[0], size) + rows[0]], []

        last, _ = run_steps(lambda state, rows: step(state, rows), [x.clone()], [torch.ones(4, 3)])
        return cast(Tensor, last[0])


class Repeated(Scanned):
    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[0]
        return cast(
            Tensor, run_while(lambda one: one.sum() < 50, lambda one: (self.use(one, size) + one + 1,), (x.clone(),))[0]
        )


class Chosen(Scanned):
    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[0]
        with plain_tracing():
            found = torch.cond(x.sum() > 1, lambda: self.use(x, size) * 2, lambda: self.use(x, size) - 1, ())
        return cast(Tensor, found)


USES: dict[str, Use] = {
    "views": lambda one, size: one.view(size, 3, 1).expand(size, 3, 2).sum(2).view(size, 3),
    "made of the size": lambda one, size: torch.cat([one[:, :2], torch.zeros(size, 1)], 1) + torch.ones(size, 1),
    "computed": lambda one, size: one.view(size, 3).repeat(2, 1).view(2 * size, 3)[:size] / (size + 1),
}


@pytest.mark.long
@pytest.mark.parametrize("title", USES)
@pytest.mark.parametrize("kind", [Scanned, Repeated, Chosen])
def test_a_size_is_given_to_several_calls(kind: type[Scanned], title: str) -> None:
    module = kind(USES[title])
    shapes = ({0: Dim("batch")},)
    program = torch.export.export(module, (torch.rand(4, 3),), dynamic_shapes=shapes, strict=False).module()
    for size in (1, 2, 3, 4, 7):
        x = torch.rand(size, 3)
        torch.testing.assert_close(program(x), module(x))

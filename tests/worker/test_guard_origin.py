"""The line of a guard from which a range follows that torch says a dimension violates."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.export import Dim

from exportdoctor.worker.describe.describe_failure import cause_chain
from exportdoctor.worker.describe.guard_origin import record_guards


class Bounded(nn.Module):
    """Code before the bound relates the batch to other sizes, too, and excludes none."""

    def __init__(self, limit: int, upper: bool) -> None:
        super().__init__()
        self.limit, self.upper, self.up = limit, upper, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        made = self.up(x.view(batch, channels, height * width).transpose(1, 2))
        x = made.transpose(1, 2).reshape(batch, channels, height, width)
        if self.upper:
            return x.contiguous() if x.shape[0] >= self.limit else x * 2
        return x.contiguous() if x.shape[0] <= self.limit else x * 2


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "upper", "batch"), [(64, True, 3), (9, True, 2), (4, False, 6), (2, False, 3)])
def test_the_guard_that_makes_the_range_is_blamed_and_none_before_it(limit: int, upper: bool, batch: int) -> None:
    """Story: a Linear was blamed whose guards exclude no batch, and each size of the image as well."""
    shapes = {"x": {0: Dim("batch"), 2: Dim.AUTO, 3: Dim.AUTO}}
    with record_guards() as log, pytest.raises(Exception, match="Constraints violated") as raised:
        torch.export.export(
            Bounded(limit, upper), (torch.randn(batch, 8, 16, 12),), dynamic_shapes=shapes, strict=False
        )
    found = log.find_violated(tuple(cause_chain(raised.value)))
    assert found is not None
    assert found.frame is not None
    source, first = inspect.getsourcelines(Bounded.forward)
    sign = ">=" if upper else "<="
    assert found.frame.line == first + next(place for place, text in enumerate(source) if f"shape[0] {sign}" in text)

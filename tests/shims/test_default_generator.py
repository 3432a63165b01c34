"""Without `generator=None` torch draws the same values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from exportdoctor.shims.own.default_generator import without_no_generator


@pytest.mark.parametrize("function", [torch.rand, torch.randn, lambda *size, **how: torch.randint(9, size, **how)])
@pytest.mark.parametrize(
    "how", [{}, {"generator": None}, {"generator": 3}, {"generator": None, "dtype": torch.float64}]
)
def test_the_values_are_those_of_the_generator_that_is_given(function: Any, how: dict[str, Any]) -> None:
    def drawn(draw: Any) -> torch.Tensor:
        torch.manual_seed(0)
        own = {"generator": torch.Generator().manual_seed(how["generator"])} if how.get("generator") else {}
        found: torch.Tensor = draw(3, 4, **{**how, **own})
        return found

    assert torch.equal(drawn(without_no_generator(function)), drawn(function))

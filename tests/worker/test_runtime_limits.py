"""What is said of NaN and of large whole numbers in ONNX Runtime is what a file does there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from exportdoctor.worker.translate.onnx_program import translate
from exportdoctor.worker.translate.runtime_limits import rounded_fractions, runtime_limits


class Computes(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def make(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    return translate(
        torch.export.export(Computes(function), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    ).made


X = torch.tensor([[1.0, torch.nan, 6.0, 2.0], [torch.nan, 0.0, 1.0, 3.0], [4.0, 5.0, 9.0, torch.nan]])
FLOATS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReduceMax": lambda x: x.amax(1),
    "ReduceMin": lambda x: x.amin(1),
    "ArgMax": lambda x: x.argmax(1),
    "TopK": lambda x: x.topk(2, 1).values,
    "MaxPool": lambda x: nn.functional.max_pool1d(x, 2),
    "Relu": torch.relu,
    "Softmax": lambda x: x.softmax(1),
    "Clip": lambda x: x.clamp(0, 2),
}
WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "ReduceMax": lambda x: x.amax(1),
    "ReduceProd": lambda x: x.prod(1),
    "ReduceSum": lambda x: x.sum(1),
    "Clip": lambda x: x.clamp(0, 2**60),
    "Max": lambda x: torch.maximum(x, x * 0 + 2),
    "Mul": lambda x: x * 3,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOATS)
def test_nan_is_told_of_where_it_is_lost(name: str) -> None:
    made = make(FLOATS[name], torch.zeros(3, 4))
    (found,) = made(X)
    differs = not torch.equal(found.nan_to_num(-7), FLOATS[name](X).nan_to_num(-7))
    assert any("a NaN reaches" in text and name in text for text in runtime_limits(made.model)) == differs


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_told_of_where_they_are_lost(name: str) -> None:
    made = make(WHOLE[name], torch.ones(3, 4, dtype=torch.int64))
    for bits in (31, 53):
        x = torch.tensor([[2**bits + 1, 1, 1, 1], [2**bits + 3, 5, 1, -2]])
        (found,) = made(x)
        told = [text for text in runtime_limits(made.model) if name in text]
        beyond = any(f"2**{one} " in text for one in (31, 53) if one <= bits for text in told)
        assert beyond or torch.equal(found, WHOLE[name](x))


@pytest.mark.slow
def test_sizes_and_places_are_not_told_of() -> None:
    def function(x: Tensor) -> Tensor:
        return x[: torch.sym_min(x.shape[0], 5)].argmax(1).clamp(0, 2) + (x > 0).long().sum(1).clamp(0, 3)

    made = make(function, torch.zeros(3, 4))
    assert not any("whole numbers" in text for text in runtime_limits(made.model))


class Stretched(nn.Module):
    """By whole numbers, or by a fraction of Python."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(math.ceil(x.shape[0] * self.factor)) + x.shape[0] // 2


@pytest.mark.parametrize(("factor", "told"), [(1.1, True), (2, False)])
def test_a_whole_number_that_is_rounded_from_a_fraction_is_told(factor: float, told: bool) -> None:
    """Of 50 rows the file had 55, and eager 56: the sizes that were tried do not show it."""
    program = torch.export.export(Stretched(factor), (torch.ones(4),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    notes = [*rounded_fractions(program)]
    assert len(notes) == told
    assert all("a whole number is rounded from a fraction" in note for note in notes)

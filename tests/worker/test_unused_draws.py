"""Numbers that eager draws from Python's or NumPy's generator, and whether anything is done with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from random import uniform
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import run_calls
from exportdoctor.worker.prove.unused_draws import states_of_generators, uses_draws

X: Inputs = ((torch.ones(2, 3),), {})


class Model(nn.Module):
    """A model that calls `forward` with itself."""

    def __init__(self, forward: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def layers_dropped(model: Model, x: torch.Tensor) -> torch.Tensor:
    """As transformers' wav2vec2 and musicgen."""
    for _ in range(3):
        drawn = numpy.random.random()
        also = random.uniform(0, 1)
        x = x if model.training and (drawn < 0.1 or also < 0.1) else x * 2
    return x


def drawn_array(model: Model, x: torch.Tensor) -> torch.Tensor:
    rows = numpy.random.rand(4)
    return x if model.training and rows[0] > 0.5 else x + 1


def compared(model: Model, x: torch.Tensor) -> torch.Tensor:
    return x if random.random() < 1e-9 else x * 2


def caught(model: Model, x: torch.Tensor) -> torch.Tensor:
    try:
        return x * random.random()
    except Exception:
        return x


def kept_for_the_next_call(model: Any, x: torch.Tensor) -> torch.Tensor:
    scale, model.last = getattr(model, "last", 1.0), random.random()
    return x * scale


def returned(model: Model, x: torch.Tensor) -> tuple[torch.Tensor, float]:
    return x, random.random()


def made_a_tensor(model: Model, x: torch.Tensor) -> torch.Tensor:
    return x + torch.full((), numpy.random.rand())


def chosen(model: Model, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if random.choice((None, 1)) is None else x


def permuted(model: Model, x: torch.Tensor) -> torch.Tensor:
    numpy.random.permutation(4)
    return x


def shuffled(model: Model, x: torch.Tensor) -> torch.Tensor:
    order = [0, 1]
    random.shuffle(order)
    return x[order]


KEPT: list[float] = []


def kept_elsewhere(model: Model, x: torch.Tensor) -> torch.Tensor:
    KEPT[:] = [random.random()]
    return x


def drawn_by_another_name(model: Model, x: torch.Tensor) -> torch.Tensor:
    uniform(0, 1)
    return x


def fails(model: Model, x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no")


@pytest.mark.parametrize("forward", [layers_dropped, drawn_array])
def test_a_number_with_which_nothing_is_done_is_not_used(forward: Callable[[Any, torch.Tensor], Any]) -> None:
    model, before = Model(forward).eval(), states_of_generators()
    assert not uses_draws(lambda: run_calls(model, [X, X]))
    assert states_of_generators() == before
    assert isinstance(random.random(), float)


@pytest.mark.parametrize(
    "forward",
    [
        compared, chosen, permuted, caught, kept_for_the_next_call, returned, made_a_tensor, shuffled, kept_elsewhere,
        drawn_by_another_name, fails,
    ],
)  # fmt: skip
def test_a_number_that_may_be_used_counts_as_used(forward: Callable[[Any, torch.Tensor], Any]) -> None:
    model = Model(forward).eval()
    assert uses_draws(lambda: run_calls(model, [X, X]))
    KEPT.clear()
    assert isinstance(random.random(), float)
    assert isinstance(numpy.random.rand(), float)


def test_what_is_drawn_in_training_is_used() -> None:
    assert uses_draws(lambda: run_calls(Model(layers_dropped).train(), [X, X]))

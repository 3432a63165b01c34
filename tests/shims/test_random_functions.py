"""Functions of torch that move its generator of random numbers are known by their names, and common others are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from exportdoctor.shims.random_functions import has_random_name

VALUES = torch.tensor([0.2, 0.4, 0.6, 0.8])
GIVEN: tuple[tuple[Any, ...], ...] = (
    (), (3,), (VALUES,), (VALUES, 0.5, True), (VALUES, 1), (VALUES, 2, True), (VALUES, VALUES), ((3,),), (3, (2,)),
    (3, 3), (torch.ones(1, 2, 8, 8), 0.5, True), (torch.ones(1, 2, 8, 8), 2, (4, 4)), (VALUES, 0.1, 0.3, True),
    (0.0, 1.0, (3,)), (torch.ones(3), VALUES[:3]), (torch.rand(4, 4),),
)  # fmt: skip
SETTERS = (
    "_", "autocast_", "clear_", "compile", "fork", "import_", "init_", "load", "manual_seed", "save", "seed", "set_",
    "unify_", "use_", "wait",
)  # fmt: skip


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for holder in (torch, functional):
        for name in dir(holder):
            value = getattr(holder, name)
            if callable(value) and not isinstance(value, type) and not name.startswith(SETTERS):
                yield name, value


def moves_generator(function: Callable[..., Any], given: tuple[Any, ...]) -> bool:
    before = torch.get_rng_state()
    with suppress(Exception):
        function(*(one.clone() if isinstance(one, Tensor) else one for one in given))
    return not torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_each_function_that_moves_the_generator_is_known() -> None:
    found = {name for name, one in functions() if any(moves_generator(one, given) for given in GIVEN)}
    assert len(found) > 20
    assert {name for name in found if not has_random_name(name)} == set()


@pytest.mark.parametrize("name", [name for name in dir(Tensor) if name.endswith("_") and not name.endswith("__")])
def test_each_method_that_moves_the_generator_is_known(name: str) -> None:
    moved = any(moves_generator(getattr(VALUES.clone(), name), given) for given in ((), (0.5,), (1,), (0.1, 0.5)))
    assert has_random_name(name) or not moved


@pytest.mark.parametrize(
    "name", ["normalize", "layer_norm", "linear", "softmax", "lgamma", "polygamma", "triangular_solve"]
)
def test_functions_that_compute_are_not_taken_for_random(name: str) -> None:
    assert not has_random_name(name)

"""Indices with symbolic numbers: the same places are read and written as by an index with numbers of Python."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.shims.own.index_as_item import assign, take

SIZES = (3, 4, 2, 5)
MASK = [[True, False, True], [False, True, False], [False, False, True]]


def number(n: int) -> Tensor:
    """What stands for a symbolic number in an eager run."""
    return torch.tensor(n)


@st.composite
def indices(draw: st.DrawFn) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """An index with tensors for numbers, and the same with numbers."""
    symbolic: list[Any] = []
    plain: list[Any] = []
    taken = 0
    dims = draw(st.integers(1, len(SIZES)))
    while taken < dims:
        size = SIZES[taken]
        at = st.integers(-size, size - 1)
        both: tuple[Any, Any]
        form = draw(st.sampled_from(("number", "int", "slice", "steps", "all", "none", "true", "rows", "mask")))
        taken += form not in ("none", "true")
        if form == "number":
            n = draw(at)
            both = (number(n), n)
        elif form == "int":
            both = (draw(at),) * 2
        elif form in ("slice", "steps"):
            start, stop = (draw(st.one_of(st.none(), st.integers(-size - 2, size + 2))) for _ in range(2))
            step = draw(st.integers(1, 3)) if form == "steps" else None
            made = [number(n) if n is not None and draw(st.booleans()) else n for n in (start, stop)]
            both = (slice(made[0], made[1], step), slice(start, stop, step))
        elif form == "rows":
            both = (torch.tensor(draw(st.lists(at, min_size=2, max_size=2))),) * 2
        elif form == "mask":
            both = (torch.tensor([True, False] * 3)[:size],) * 2
        else:
            both = ({"all": slice(None), "none": None, "true": True}[form],) * 2
        symbolic.append(both[0])
        plain.append(both[1])
    if draw(st.booleans()):
        place = draw(st.integers(0, len(plain)))
        if place == len(plain):  # before other parts it would leave them other dimensions
            symbolic.append(Ellipsis)
            plain.append(Ellipsis)
    return tuple(symbolic), tuple(plain)


@settings(max_examples=300, deadline=None)
@given(indices(), st.booleans())
def test_an_index_of_symbols_reads_and_writes_what_one_of_numbers_does(
    index: tuple[tuple[Any, ...], tuple[Any, ...]], with_number: bool
) -> None:
    symbolic, plain = index
    x = torch.randn(SIZES)
    try:
        wanted = x[plain]
    except IndexError:  # rows and masks of other lengths
        return
    assert torch.equal(take(x, symbolic), wanted)
    value = torch.tensor(7.0) if with_number else torch.randn((1, 1, *wanted.shape))
    one, other = x.clone(), x.clone()
    assign(one, symbolic, 7.0 if with_number else value)
    other[plain] = value
    assert torch.equal(one, other)


@pytest.mark.parametrize("mask", [MASK, np.array(MASK), torch.tensor(MASK)], ids=["list", "array", "tensor"])
def test_a_mask_takes_as_many_dimensions_as_it_has(mask: Any) -> None:
    x = torch.randn(3, 3, 5)
    assert torch.equal(take(x, (mask, number(2))), x[torch.tensor(MASK), 2])
    one, other = x.clone(), x.clone()
    assign(one, (mask, number(-1)), 7.0)
    other[torch.tensor(MASK), -1] = 7.0
    assert torch.equal(one, other)


class Model(nn.Module):
    def __init__(self, step: Callable[[Model, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.cache: Tensor
        self.register_buffer("cache", torch.zeros(2, 9, 4))
        self.step = step

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return self.step(self, x, at)


def writes_a_key(model: Model, x: Tensor, at: Tensor) -> Tensor:
    model.cache[:, at] = model.layer(x[:, 0])
    return x @ model.cache.mT


def writes_keys(model: Model, x: Tensor, at: Tensor) -> Tensor:
    n: Any = at.item()
    model.cache[:, n : n + x.shape[1]] = model.layer(x)
    model.cache[:1, n] += 1
    return x @ model.cache.mT


def masks_rows(model: Model, x: Tensor, at: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    for row in range(x.shape[0]):
        mask[row, : at - row] = True
    return model.layer(x) * mask[..., None]


def takes_rows(model: Model, x: Tensor, at: Tensor) -> Tensor:
    rows, n = torch.tensor([1, 0]), cast(Any, at.item())
    return model.layer(x)[rows, at % 2] + model.cache[rows, n]


def masks_last(model: Model, x: Tensor, at: Tensor) -> Tensor:
    y = model.layer(x)
    y[:, x.shape[1] - 1] = at
    return y[[0, 1], x.shape[1] - 2] + torch.narrow(model.cache, 1, at, 2).sum(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [writes_a_key, writes_keys, masks_rows, takes_rows, masks_last], ids=lambda step: step.__name__
)
def test_a_program_reads_and_writes_as_eager_does(step: Callable[[Model, Tensor, Tensor], Tensor]) -> None:
    module = Model(step)
    call = ExportCall(
        module=module,
        args=(torch.randn(2, 3, 4), torch.tensor(2)),
        dynamic_shapes=({1: Dim("tokens", min=2, max=8)}, None),
    )
    with torch.no_grad(), apply_shims([find("index-as-item")], call) as given:
        program = export_program(given).module()
    module = copy.deepcopy(module)  # a program shares its tensors with the module
    for tokens, at in ((3, 2), (2, 0), (4, 4), (5, 3), (3, 1)):
        x = torch.randn(2, tokens, 4)
        torch.testing.assert_close(program(x, torch.tensor(at)), module(x, torch.tensor(at)))
        torch.testing.assert_close(program.state_dict()["cache"], module.cache)


@pytest.mark.slow
def test_a_program_refuses_the_indices_that_eager_refuses() -> None:
    module = Model(writes_a_key)
    call = ExportCall(module=module, args=(torch.randn(2, 3, 4), torch.tensor(2)))
    with torch.no_grad(), apply_shims([find("index-as-item")], call) as given:
        program = export_program(given).module()
    for at in (9, -10):
        for one in (copy.deepcopy(module), program):
            with pytest.raises((IndexError, RuntimeError)):
                one(torch.randn(2, 3, 4), torch.tensor(at))

"""Fake tensors are indexed as real ones are: the same shapes, and the same refusals."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exportdoctor.torch_internals.fake_tensors import new_fake_mode, select_as_real_tensors_do

SIZES = st.integers(1, 3)
SHAPES = st.lists(SIZES, min_size=1, max_size=3)


def outcome_of(call: Any, tensor: Tensor) -> str:
    """The shape that it gives, or what it raises."""
    try:
        return str(tuple(call(tensor).shape))
    except (IndexError, RuntimeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def outcomes_of(call: Any, tensor: Tensor) -> tuple[str, str]:
    """That of the real tensor, and of a fake one."""
    fake = new_fake_mode().from_tensor(tensor)
    with select_as_real_tensors_do():
        return outcome_of(call, tensor), outcome_of(call, fake)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(SIZES, min_size=1, max_size=3),
    st.lists(SIZES, min_size=1, max_size=3),
    st.integers(0, 1),
    st.integers(0, 999),
)
def test_a_mask_selects_from_a_fake_tensor_what_it_selects_from_a_real_one(
    shape: list[int], of_mask: list[int], before: int, seed: int
) -> None:
    mask = torch.rand(of_mask, generator=torch.Generator().manual_seed(seed)) > 0.4
    index = (slice(None),) * before + (mask,)
    real, fake = outcomes_of(lambda tensor: tensor[index], torch.randn(shape))
    assert fake == real


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-1, 4), max_size=4), SIZES)
def test_an_embedding_refuses_the_positions_that_a_real_one_refuses(positions: list[int], rows: int) -> None:
    ids = torch.tensor(positions, dtype=torch.int64)
    real, fake = outcomes_of(lambda table: torch.nn.functional.embedding(ids, table), torch.randn(rows, 2))
    assert fake == real

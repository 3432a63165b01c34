"""The shapes that are declared for proposed inputs have the structure that torch asks for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves

from exportdoctor.targets.sizes.dynamic_shapes import dynamic_shapes, dynamic_title

PLAIN: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-2, 9) | st.just("name")
VALUES: st.SearchStrategy[Any] = st.recursive(
    PLAIN | st.builds(torch.ones, st.just(3)),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=5,
)


class Sum(nn.Module):
    """Rows plus every tensor among the options."""

    def forward(self, rows: torch.Tensor, options: Any) -> torch.Tensor:
        return rows + sum(leaf.sum() for leaf in tree_leaves(options) if isinstance(leaf, torch.Tensor))


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(VALUES)
def test_an_argument_without_named_axes_is_declared_fixed_whatever_it_contains(options: Any) -> None:
    inputs = {"rows": torch.ones(4, 3), "options": options}
    shapes = dynamic_shapes({"rows": {0: "batch"}}, inputs=inputs)
    program = torch.export.export(Sum(), (), inputs, dynamic_shapes=shapes, strict=False)
    torch.testing.assert_close(
        program.module()(rows=torch.ones(5, 3), options=options), Sum()(torch.ones(5, 3), options)
    )


@pytest.mark.parametrize(
    ("axes", "title"),
    [
        (["batch", "2*batch", "length + 1"], "batch, length + 1 dynamic"),
        (["cache length", "cache length + 1"], "cache length dynamic"),
        (["4*w4", "batch"], "4*w4, batch dynamic"),
        (["8*h", "8*w"], "8*h, 8*w dynamic"),
        ([], "static"),
    ],
)
def test_what_is_dynamic_is_named_though_it_is_derived(axes: list[str], title: str) -> None:
    assert dynamic_title(dict.fromkeys(axes)) == title

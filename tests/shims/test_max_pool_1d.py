"""1-d pooling as 2-d pooling: the same maxima, under a condition for lengths and strides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.shims.own.max_pool_1d import pool_as_2d


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.max_pool1d(x, 2)


def test_of_a_transposed_input_the_values_are_torchs_and_the_strides_are_not() -> None:
    x = torch.randn(2, 8, 3).transpose(1, 2)
    own, plain = pool_as_2d(x, 2), torch.max_pool1d(x, 2)
    assert torch.equal(own, plain)
    assert own.stride() != plain.stride()
    assert find("max-pool-1d-as-2d").soundness == "precondition"
    assert "strides" in find("max-pool-1d-as-2d").precondition


def test_a_length_that_is_pooled_to_one_value_is_refused_and_the_condition_says_so() -> None:
    x = torch.randn(2, 3, 8)
    shim = find("max-pool-1d-as-2d")
    small = ExportCall(module=Pooled(), args=(x,), dynamic_shapes=({2: Dim("length", min=2, max=64)},))
    with apply_shims([shim], small) as call, pytest.raises(Exception, match=r"// 2\) != 1"):
        export_program(call)
    longer = ExportCall(module=Pooled(), args=(x,), dynamic_shapes=({2: Dim("length", min=4, max=64)},))
    with apply_shims([shim], longer) as call:
        program = export_program(call).module()
    y = torch.randn(2, 3, 13)
    assert torch.equal(program(y), Pooled()(y))
    assert "more than one" in shim.precondition

"""Sizes that are read from tensors are at least one, which the program checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from shim_cases import CASES


@pytest.mark.slow
def test_the_program_refuses_a_size_of_zero_and_takes_one() -> None:
    with apply_shims([find("sizes-from-one")], CASES["sizes-from-one"].call()) as call:
        program = export_program(call).module()
    assert program(torch.randn(4, 3), torch.tensor([1, 2, 2])).shape == (1, 3)
    with pytest.raises(RuntimeError, match=">= 1"):
        program(torch.randn(0, 3), torch.tensor([0, 2, 2]))


class Places(nn.Module):
    """A number that is no size of anything: a place, which may be zero."""

    def forward(self, x: Tensor, start: Any) -> Tensor:
        return x[start.item() % 3 :].sum()


def test_a_number_that_is_no_size_is_not_checked() -> None:
    call = ExportCall(module=Places().eval(), args=(torch.randn(5), torch.tensor(0)))
    with pytest.raises(NotApplicable, match="no size follows"), apply_shims([find("sizes-from-one")], call) as changed:
        export_program(changed)


def test_a_run_without_an_export_needs_no_such_size() -> None:
    call = ExportCall(module=nn.Identity(), args=(torch.randn(5),))
    with apply_shims([find("sizes-from-one")], call) as changed:
        assert changed.module(*changed.args) is changed.args[0]

"""An export leaves the model as it was."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find


class Table(nn.Module):
    """It computes its table at the first call, and a list keeps what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[Tensor] = []

    @cached_property
    def table(self) -> Tensor:
        return torch.polar(torch.ones(4, 2), torch.arange(8.0).reshape(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(x)
        return torch.view_as_real(torch.view_as_complex(x) * self.table)


def test_what_a_traced_forward_leaves_is_taken_off_the_module() -> None:
    module, x = Table().eval(), torch.randn(4, 2, 2)
    call = ExportCall(module=module, args=(x,))
    with apply_shims([find("no-grad")], call) as given:
        program = export_program(given).module()
    assert "table" not in vars(module)
    assert not module.sizes
    torch.testing.assert_close(program(x), module(x))


class Limited(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] <= 16
        return x * 2


def test_a_suggested_bound_is_taken_beside_dimensions_without_a_name() -> None:
    shapes = ({0: Dim.AUTO, 1: Dim("length"), 2: Dim.DYNAMIC},)
    call = ExportCall(module=Limited(), args=(torch.randn(2, 6, 3),), dynamic_shapes=shapes)
    with apply_shims([find("suggested-relations")], call) as given:
        program = export_program(given)
    assert sorted(int(one.upper) for one in program.range_constraints.values() if one.upper == 16) == [16]
    assert program.module()(torch.ones(5, 16, 4)).shape == (5, 16, 4)

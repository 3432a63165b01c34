"""Dynamic sizes that are declared wider than the code takes: narrowed where eager takes no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.own.narrowed_sizes import _resize, _sizes_of


class Positions(nn.Module):
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] <= 16, "too long"
        return x + self.table[: x.shape[1]]


class Blocks(Positions):
    """Takes no size that is not a multiple of three."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] % 3:
            raise ValueError("no whole blocks")
        return x * 2


class Pieces(Positions):
    def forward(self, x: Any) -> Tensor:
        return super().forward(torch.cat([x["head"], x["tail"][0]], 1))


class WithoutTable(Positions):
    """Takes longer ones, too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.shape[1] <= 16 else x


class Adding(nn.Module):
    """One row is added to all of the other's."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


LENGTH = {0: Dim("rows"), 1: Dim("length")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "args", "shapes", "right", "wrong"),
    [
        (Positions(), (torch.randn(2, 6, 2),), (LENGTH,), [(1, 16, 2), (5, 3, 2)], [(2, 17, 2)]),
        (Blocks(), (torch.randn(2, 6, 2),), (LENGTH,), [(3, 9, 2), (2, 3, 2)], [(2, 7, 2)]),
    ],
    ids=["a table", "multiples"],
)
def test_the_program_takes_what_eager_takes(module: Any, args: Any, shapes: Any, right: Any, wrong: Any) -> None:
    with apply_shims([find("narrow-sizes")], ExportCall(module=module, args=args, dynamic_shapes=shapes)) as call:
        program = export_program(call).module()
    for size in right:
        x = torch.randn(size)
        torch.testing.assert_close(program(x), module(x), rtol=0, atol=0)
    for size in wrong:
        for one in (program, module):
            with pytest.raises((AssertionError, ValueError, RuntimeError)):
                one(torch.randn(size))


@pytest.mark.slow
def test_sizes_within_containers_are_changed_together() -> None:
    length = Dim("length")
    args = ({"head": torch.randn(2, 3, 2), "tail": [torch.randn(2, 3, 2)]},)
    shapes = {"x": {"head": {1: length}, "tail": [{1: length}]}}
    with apply_shims([find("narrow-sizes")], ExportCall(module=Pieces(), args=args, dynamic_shapes=shapes)) as call:
        program = export_program(call)
    assert {(int(one.lower), int(one.upper)) for one in program.range_constraints.values()} == {(0, 8)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "args", "shapes", "told"),
    [
        (WithoutTable(), (torch.randn(2, 6, 2),), (LENGTH,), "eager takes length = 17"),
        (Adding(), (torch.randn(3, 2), torch.randn(3, 2)), ({0: Dim("n")}, {0: Dim("m")}), "eager takes m = 1"),
        (Adding(), (torch.randn(3, 2), torch.randn(3, 2)), ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}), "has a name"),
    ],
    ids=["longer ones", "one row", "no names"],
)
def test_it_is_not_applicable_where_eager_takes_more(module: Any, args: Any, shapes: Any, told: str) -> None:
    with (
        pytest.raises(NotApplicable, match=told),
        apply_shims([find("narrow-sizes")], ExportCall(module=module, args=args, dynamic_shapes=shapes)) as call,
    ):
        export_program(call)


def test_a_tensor_is_cut_or_its_rows_are_repeated_at_each_place_of_the_dimension() -> None:
    rows = Dim("rows")
    value, shape = [torch.arange(3), {"a": torch.arange(6).reshape(1, 6)}], [{0: rows}, {"a": (None, 2 * rows)}]
    assert list(_sizes_of(value, shape, "rows")) == [3]
    larger = _resize(value, shape, "rows", 4)
    assert larger[0].tolist() == [0, 1, 2, 0]
    assert larger[1]["a"].tolist() == [[0, 1, 2, 3, 4, 5, 0, 1]]
    smaller = _resize(value, shape, "rows", 1)
    assert (smaller[0].tolist(), smaller[1]["a"].tolist()) == ([0], [[0, 1]])
    assert _resize(value, shape, "other", 1)[0] is value[0]

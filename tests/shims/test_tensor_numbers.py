"""`int(tensor)` stays symbolic, and is the number that Python's `int` gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.cure_pattern import FailureView
from exportdoctor.shims.rules.numbers.number_calls import symbolic_int
from exportdoctor.shims.rules.numbers.tensor_numbers import SHIM


class Scaled(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        return x * int(n)


class Read(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        return x * int(n.item())


class Sized(nn.Module):
    """`int` of a size, as a type, and for another type."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        rows, kinds = tuple(int(size) for size in x.shape), {int: 1, float: 2}
        half = int(x.shape[0] / 2)
        assert isinstance(rows[0], int)
        return x.reshape(rows[0] * rows[1])[: half * rows[1]].sum() + kinds[int] + int("7")


class Divided(nn.Module):
    """`divmod`, which a symbolic number does not have, of a number and of a size."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        (quotient, rest), (rows, left) = divmod(int(n), 3), divmod(x.shape[0], 4)
        return x * quotient + rest + rows * left + sum(divmod(7, 2)) + sum(divmod(7.5, 2))


class AsksForType(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        count = int(n)
        return x * count if type(count) is int else x


def _call(module: nn.Module, n: Any) -> ExportCall:
    torch.manual_seed(0)
    return ExportCall(module=module, args=(torch.randn(6, 3), torch.tensor(n)), dynamic_shapes=({0: Dim.DYNAMIC}, None))


def _program(module: nn.Module, n: Any) -> Callable[..., Any]:
    with apply_shims([find("int-as-item")], _call(module, n)) as given:
        program: Callable[..., Any] = export_program(given).module()
    return program


@pytest.mark.parametrize(
    ("module", "values"),
    [
        (Scaled(), [3, 0, 1, -4, 2**40]),
        (Scaled(), [2.7, -2.7, 0.0, -0.5, 1e9]),
        (Scaled(), [True, False]),
        (Read(), [3, 0, 1, -4, 2**40]),
        (Divided(), [7, 0, 1, -4, 2**40]),
        (Divided(), [7.9, -7.9]),
    ],
)
def test_the_number_is_that_of_python(module: nn.Module, values: list[Any]) -> None:
    program = _program(module, values[0])
    for value in values:
        x = torch.randn(4, 3)
        torch.testing.assert_close(program(x, torch.tensor(value)), module(x, torch.tensor(value)))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_what_is_no_number_is_refused(value: float) -> None:
    program = _program(Scaled(), 2.0)
    with pytest.raises(RuntimeError, match="no number, or too large"):
        program(torch.randn(4, 3), torch.tensor(value))


def test_a_size_keeps_its_symbol_and_int_is_still_a_type() -> None:
    program = _program(Sized(), 1)
    for rows in (2, 5, 9):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x, torch.tensor(1)), Sized()(x, torch.tensor(1)))


def test_code_that_asks_for_the_type_of_a_number_is_left_alone() -> None:
    with pytest.raises(NotApplicable, match="asks for types"), apply_shims([SHIM], _call(AsksForType(), 2)):
        pass


def test_in_eager_it_is_pythons_own() -> None:
    names: dict[str, Any] = {}
    with symbolic_int([names], fractions=True):
        kind = names["int"]
        assert (kind(), kind("12"), kind("ff", 16), kind(2.9), kind(torch.tensor(-2.9))) == (0, 12, 255, 2, -2)
        assert kind == int  # noqa: E721
        assert {int: 1}[kind] == 1
        assert not isinstance(2.0, kind)
    assert "int" not in names


@pytest.mark.parametrize(
    ("line", "origin", "fits"),
    [
        ("count = int(groups.max())", "count = int(groups.max())", True),
        ("count = int(largest)", "largest = groups.max().item()", True),
        ("ends = map(int, ends.tolist())", "ends = map(int, ends.tolist())", False),
        ("height = int(height)", "for height, width in grid.tolist():", False),
        ("if groups.max() > 3:", "if groups.max() > 3:", False),
    ],
)
def test_it_is_proposed_where_int_takes_a_number_that_was_read(line: str, origin: str, fits: bool) -> None:
    """Not for lists of numbers, which `hoist-numbers` takes: each would be a symbol, and most lead to other guards."""
    seen = FailureView(
        kind=FailureKind.DATA_DEPENDENT_VALUE, lines=(f"m.py:forward: {line}",), born=(f"m.py:forward: {origin}",)
    )
    assert any(cure.matches(seen) for cure in SHIM.cures) == fits

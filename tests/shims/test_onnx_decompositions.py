"""Operators that ONNX does not have: what stands in their place computes the same, and is translated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import exportdoctor.shims as sh
from exportdoctor.shims import ExportCall, NotApplicable
from exportdoctor.shims.own.onnx_decompositions import with_operators_of_onnx

Operator = Callable[[Tensor, Tensor], Any]
FIRST = torch.zeros(4, 2, dtype=torch.int64)


def edges(x: Tensor) -> Tensor:
    return x.sort(-1).values


OPERATORS: dict[str, Operator] = {
    "searchsorted": lambda x, y: (torch.searchsorted(edges(x), y), torch.searchsorted(edges(x), y, right=True)),
    "searchsorted by": lambda x, y: torch.searchsorted(x, y, sorter=x.argsort(-1), side="right", out_int32=True),
    "searchsorted in one": lambda x, y: (torch.searchsorted(edges(x[0]), y), torch.searchsorted(edges(y[0]), 0.25)),
    "cdist": lambda x, y: tuple(torch.cdist(x, y, p=p) for p in (0.0, 1.0, 2.0, 3.0, math.inf)),
    "cdist of batches": lambda x, y: torch.cdist(x.unsqueeze(0), torch.stack((y, x, y))),
    "cdist of many": lambda x, y: torch.cdist(x.repeat(8, 1), y),
    "hypot": torch.hypot,
    "cumprod": lambda x, y: (x.cumprod(0), y.cumprod(-1, dtype=torch.float64), (x > 0).long().cumprod(1)),
    "kthvalue": lambda x, y: (*x.kthvalue(2), *y.kthvalue(3, dim=0, keepdim=True)),
    "median": lambda x, y: (x.median(), *y.median(0), *x.median(-1, keepdim=True), (x * 9).long().median()),
    "median of NaN": lambda x, y: (torch.where(x > 0.5, math.nan, x).median(-1).values, (x / 0 * 0).median()),
    "repeat_interleave": lambda x, y: (x.repeat_interleave(torch.tensor([1, 0, 2, 3]), 0, output_size=6),
                                       y.repeat_interleave(torch.tensor(2), 1, output_size=8),
                                       x.repeat_interleave(torch.tensor([3]), output_size=48)),
    "scatter": lambda x, y: (x.scatter_add(1, FIRST, y), x.scatter(0, FIRST[:2], y),
                             x.scatter_reduce(1, FIRST + 1, y, "amax"), y.scatter_reduce(1, FIRST, x, "sum")),
}  # fmt: skip


class Computes(nn.Module):
    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        found = self.operator(x, y)
        return tuple(found) if isinstance(found, tuple) else (found,)


def inputs(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 4, generator=generator), torch.randn(4, 4, generator=generator)


@pytest.mark.parametrize("name", OPERATORS)
def test_what_stands_in_the_place_of_an_operator_computes_the_same(name: str) -> None:
    module = Computes(OPERATORS[name])
    run = with_operators_of_onnx(torch.export.export(module, inputs())).module()
    for seed in range(5):
        given = inputs(seed)
        for found, wanted in zip(run(*given), module(*given), strict=True):
            torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.long
@pytest.mark.slow
def test_all_of_them_are_translated_and_run_in_onnx_runtime() -> None:
    def everything(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        found = (operator(x, y) for operator in OPERATORS.values())
        return tuple(one for results in found for one in (results if isinstance(results, tuple) else (results,)))

    module = Computes(everything)
    call = ExportCall(module=module, args=inputs())
    with torch.no_grad(), sh.apply_shims([sh.find("decomposed-for-onnx")], call) as given:
        translated: Any = torch.onnx.export(sh.export_program(given), verbose=False)
    for seed in range(3):
        values = inputs(seed)
        for found, wanted in zip(translated(*values), module(*values), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["searchsorted", "cumprod", "median"])
def test_sizes_stay_dynamic(name: str) -> None:
    sizes = {0: Dim("rows", min=2), 1: Dim("width", min=2)}
    shapes = {"x": sizes, "y": sizes}
    module = Computes(OPERATORS[name])
    run = with_operators_of_onnx(torch.export.export(module, inputs(), dynamic_shapes=shapes)).module()
    for rows, width in ((2, 2), (5, 3), (40, 7)):
        torch.manual_seed(rows)
        given = torch.randn(rows, width), torch.randn(rows, width)
        for found, wanted in zip(run(*given), module(*given), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_program_without_such_operators_is_left_alone() -> None:
    program = torch.export.export(Computes(lambda x, y: x.scatter(1, FIRST, y[:, :2])), inputs())
    with pytest.raises(NotApplicable, match="none of the operators"):
        with_operators_of_onnx(torch.export.export(Computes(torch.add), inputs()))
    run = with_operators_of_onnx(program).module()
    torch.testing.assert_close(run(*inputs())[0], inputs()[0].scatter(1, FIRST, inputs()[1][:, :2]))

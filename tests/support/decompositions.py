"""A module of one or many operators, for what stands in their place in a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import exportdoctor.shims as sh
from exportdoctor.shims import ExportCall

Operator = Callable[[Tensor, Tensor], Any]


class Computes(nn.Module):
    """The operators on two tensors; all their results."""

    def __init__(self, *operators: Operator) -> None:
        super().__init__()
        self.operators = operators

    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return tuple(value for operator in self.operators for value in _values(operator(one, other)))


def _values(found: Any) -> Iterable[Tensor]:
    return found if isinstance(found, tuple) else (found,)


def assert_same_results(
    run: Callable[..., Any], module: nn.Module, inputs: Iterable[tuple[Tensor, ...]], **tolerances: Any
) -> None:
    """Fail where a result differs from the module's on one of the inputs."""
    for given in inputs:
        for found, wanted in zip(run(*given), module(*given), strict=True):
            torch.testing.assert_close(found, wanted, equal_nan=True, **tolerances)


def translate(module: nn.Module, inputs: tuple[Tensor, ...], shim: str) -> Any:
    """The module as torch.onnx translates it with the shim; called, it runs in ONNX Runtime."""
    with torch.no_grad(), sh.apply_shims([sh.find(shim)], ExportCall(module=module, args=inputs)) as call:
        return torch.onnx.export(sh.export_program(call), verbose=False)

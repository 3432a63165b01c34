"""Conditions in loops of a program: tensors, where Python would ask for a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def truth_of(value: Any) -> Any:
    """During export a condition as a tensor, bool (); otherwise the value."""
    import torch

    if not torch.compiler.is_exporting():
        return value
    if isinstance(value, torch.Tensor):
        return value.reshape(()).to(torch.bool)
    is_number = isinstance(value, bool | int | float | complex | torch.SymBool | torch.SymInt | torch.SymFloat)
    number: Any = value if is_number else bool(value)
    number = number if type(number) in (bool, torch.SymBool) else number != 0
    if number is True or number is False:  # to dynamo a symbolic one is of the same class
        return torch.full((), number)
    return torch.scalar_tensor(torch.sym_ite(number, 1, 0), dtype=torch.int64) != 0


def all_hold(first: Any, *others: Callable[[], Any]) -> Any:
    """`first and other() and ...`; during export all of them are computed."""
    import torch

    if not torch.compiler.is_exporting():
        return first and all(one() for one in others)
    found = truth_of(first)
    for one in others:
        found = found & truth_of(one())
    return found


def any_holds(first: Any, *others: Callable[[], Any]) -> Any:
    """`first or other() or ...`; during export all of them are computed."""
    import torch

    if not torch.compiler.is_exporting():
        return first or any(one() for one in others)
    found = truth_of(first)
    for one in others:
        found = found | truth_of(one())
    return found


def does_not_hold(value: Any) -> Any:
    """`not value`."""
    import torch

    return ~truth_of(value) if torch.compiler.is_exporting() else not value

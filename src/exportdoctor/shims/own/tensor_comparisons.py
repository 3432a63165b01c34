"""`torch.equal` and its like give a bool of Python. Here it is that of `item`, which a traced tensor has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.function_stand_ins import stand_in_for_functions
from exportdoctor.shims.record import Replacement, Shim


def _equal(input: Any, other: Any) -> Any:
    return tuple(input.shape) == tuple(other.shape) and (input == other).all().item()


def _allclose(input: Any, other: Any, *how: Any, **named: Any) -> Any:
    import torch

    return torch.isclose(input, other, *how, **named).all().item()


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    with stand_in_for_functions(call.module, {"equal": _equal, "allclose": _allclose}):
        yield call


SHIM = Shim(
    id="equal-as-item",
    title="Keeps the answer of `torch.equal` symbolic: it is `(a == b).all().item()`",
    soundness="exact",
    enter=_enter,
    does=(
        "`torch.equal` and `torch.allclose` give a bool of Python, which depends on values that a traced tensor does "
        "not have. Here they give what `item` gives, a symbol. A condition on it is the next failure, which other "
        "shims cure."
    ),
    cures=(Cure(kinds=("data_dependent_value",), message=r"aten\.(equal|allclose)\b"),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.equal gives a symbolic bool during export",
    rank=16,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="torch.equal and torch.allclose",
            before="same = torch.equal(x, y)\n",
            after="same = x.shape == y.shape and (x == y).all().item()\n",
        ),
    ),
)

"""`torch.equal` and its like give a bool of Python. Here it is that of `item`, which a traced tensor has."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import Replacement, Shim
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.trees import tree_leaves


def _equal(one: Any, other: Any) -> Any:
    return tuple(one.shape) == tuple(other.shape) and (one == other).all().item()


def _allclose(
    one: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False, **names: Any
) -> Any:
    import torch

    names = {"input": one, "other": other, "rtol": rtol, "atol": atol, "equal_nan": equal_nan, **names}
    return torch.isclose(**names).all().item()


_AS_ITEM: dict[str, Callable[..., Any]] = {"equal": _equal, "allclose": _allclose}
"""By the name of the function: what gives the same as it, by `item`."""


def _mode() -> Any:
    from torch.overrides import TorchFunctionMode

    class ComparesByItem(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            by_item = _AS_ITEM.get(getattr(func, "__name__", ""))
            if by_item is None or not any(map(is_fake, tree_leaves((args, kwargs)))):
                return func(*args, **(kwargs or {}))
            return by_item(
                *args, **{"one" if key in ("input", "self") else key: v for key, v in (kwargs or {}).items()}
            )

    return ComparesByItem()


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    kind = type(call.module)
    forward = kind.forward

    @functools.wraps(forward)
    def comparing_by_item(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not call.module:
            return forward(self, *args, **kwargs)
        with _mode():
            return forward(self, *args, **kwargs)

    with patch_attribute(kind, "forward", comparing_by_item):
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

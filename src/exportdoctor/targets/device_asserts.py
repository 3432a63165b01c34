"""Refuses, before a kernel runs, the values that it would only assert on: the CPU raises for them, a GPU is lost.

A device-side assert leaves the CUDA context of its process unusable, so that inputs that eager refuses would end an
attempt. Under `RefusedValues` they raise as on the CPU: an operator refuses what its CPU kernel refuses, and the tests
ask both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracing_modes import dispatch_mode_class

_Call = dict[str, Any]
"""The arguments of a call by the names of the operator's schema."""
_NO_CHANCE = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."


@contextmanager
def refuse_asserted_values() -> Iterator[None]:
    """Within it, an operator raises IndexError or RuntimeError for values on which its CUDA kernel would assert."""

    class RefusedValues(dispatch_mode_class()):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            check = _CHECKS.get(getattr(getattr(func, "overloadpacket", None), "__name__", ""))
            if check is not None and func.namespace == "aten":
                names = (argument.name for argument in func._schema.arguments)
                check({**dict(zip(names, args, strict=False)), **kwargs})
            return func(*args, **kwargs)

    with RefusedValues():
        yield


def _check_range(index: Any, size: int, dim: int, *, lowest: int = 0) -> None:
    if not isinstance(index, torch.Tensor) or is_fake(index) or index.numel() == 0 or index.is_meta:
        return
    least, most = (int(one) for one in index.aminmax())
    if least < lowest or most >= size:
        found = most if most >= size else least
        raise IndexError(f"index {found} is out of bounds for dimension {dim} with size {size}")


def _check_indices(call: _Call) -> None:
    dim = 0
    for index in call["indices"]:
        if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
            dim += index.dim()
            continue
        size = call["self"].shape[dim]
        _check_range(index, size, dim, lowest=-size)
        dim += 1


def _check_along(call: _Call) -> None:
    given = call["self"]
    dim = call["dim"] % max(given.dim(), 1)
    _check_range(call["index"], given.shape[dim] if given.dim() else 1, dim)


def _check_fill(call: _Call) -> None:
    given = call["self"]
    dim = call["dim"] % max(given.dim(), 1)
    size = given.shape[dim] if given.dim() else 1
    _check_range(call["index"], size, dim, lowest=-size)


def _check_flat(call: _Call) -> None:
    size = call["self"].numel()
    _check_range(call["index"], size, 0, lowest=-size)


def _check_rows(call: _Call) -> None:
    _check_range(call["indices"], call["weight"].shape[0], 0)


def _check_classes(call: _Call) -> None:
    target, ignored = call["target"], call.get("ignore_index", -100)
    if isinstance(target, torch.Tensor) and not is_fake(target):
        _check_range(target[target != ignored], call["self"].shape[min(1, call["self"].dim() - 1)], 1)


def _require(message: str, holds: Callable[[_Call], Any]) -> Callable[[_Call], None]:
    def check(call: _Call) -> None:
        if any(isinstance(one, torch.Tensor) and (is_fake(one) or one.is_meta) for one in call.values()):
            return
        if not bool(holds(call)):
            raise RuntimeError(message)

    return check


def _check_assert(call: _Call) -> None:
    message = call.get("assert_msg") or "Expected Tensor with single nonzero value, but got zero"
    _require(message, lambda given: given["self"].all())(call)


def _fills_mask(call: _Call) -> bool:
    chosen = call["mask"].expand(torch.broadcast_shapes(call["mask"].shape, call["self"].shape))
    return int(chosen.sum()) <= call["source"].numel()


def _are_counts(call: _Call) -> Any:
    repeats = call.get("repeats")
    return not isinstance(repeats, torch.Tensor) or (repeats >= 0).all()


def _are_weights(call: _Call) -> Any:
    return (call["self"].isfinite() & (call["self"] >= 0)).all()


def _are_chances(value: Any) -> Any:
    return not isinstance(value, torch.Tensor) or ((value >= 0) & (value <= 1)).all()


def _checks_of(check: Callable[[_Call], None], names: Sequence[str]) -> dict[str, Callable[[_Call], None]]:
    return dict.fromkeys((*names, *(f"{name}_" for name in names)), check)


_CHECKS: dict[str, Callable[[_Call], None]] = {
    **_checks_of(_check_indices, ("index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put")),
    **_checks_of(_check_along, ("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add")),
    **_checks_of(_check_along, ("index_copy", "index_reduce")),
    **_checks_of(_check_fill, ("index_fill",)),
    **_checks_of(_check_flat, ("take", "put")),
    **_checks_of(_check_rows, ("embedding", "_embedding_bag", "_embedding_bag_forward_only")),
    **_checks_of(_check_classes, ("nll_loss_forward", "nll_loss2d_forward")),
    **_checks_of(_check_assert, ("_assert_async", "_functional_assert_async")),
    **_checks_of(_require("Number of elements of source < number of ones in mask", _fills_mask), ("masked_scatter",)),
    **_checks_of(_require("repeats can not be negative", _are_counts), ("repeat_interleave",)),
    **_checks_of(
        _require("probability tensor contains either `inf`, `nan` or element < 0", _are_weights), ("multinomial",)
    ),
    "bernoulli": _require(_NO_CHANCE, lambda call: _are_chances(call.get("p", call["self"]))),
    "bernoulli_": _require(_NO_CHANCE, lambda call: _are_chances(call.get("p"))),
    "binary_cross_entropy": _require(
        "all elements of input should be between 0 and 1", lambda call: _are_chances(call["self"])
    ),
}
"""The check of each operator, by its name without the overload."""

"""Operators that `torch.onnx` does not translate, or not as they are called, computed by operators that it does.

They are decomposed in the exported program, by `ExportedProgram.run_decompositions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.torch_internals.graph_modules import program_nodes

_ROWS_OF_PRODUCT = 25
"""With more rows on either side torch.cdist takes Euclidean distances from a matrix product."""
_ALWAYS_PRODUCT, _NEVER_PRODUCT = 1, 2


def _search(
    _: Any, ordered: Any, values: Any, *, right: bool = False, side: str | None = None, sorter: Any = None, **how: Any
) -> Any:
    """How many of the ordered values come before each of these; NaN comes last, as in a binary search."""
    import torch

    if sorter is not None:
        ordered = ordered.gather(-1, sorter)
    if not isinstance(values, torch.Tensor):
        values = torch.full((), values, dtype=ordered.dtype, device=ordered.device)
    behind = ordered if ordered.dim() == 1 else ordered.unsqueeze(-2)
    values = values.unsqueeze(-1)
    after = behind > values if right or side == "right" else behind >= values
    return (~after).sum(-1, dtype=torch.int32 if how.get("out_int32") else torch.int64)


def _distances(_: Any, one: Any, other: Any, p: float = 2.0, mode: int | None = None) -> Any:
    """As `torch.cdist`, which for Euclidean distances of many rows takes a matrix product."""
    if p == 2 and mode != _NEVER_PRODUCT:
        rows = (one.shape[-2], other.shape[-2])
        if mode == _ALWAYS_PRODUCT or any(isinstance(size, int) and size > _ROWS_OF_PRODUCT for size in rows):
            return _distances_by_product(one, other)
    apart = (one.unsqueeze(-2) - other.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(one.dtype).sum(-1)
    if p == math.inf:
        return apart.amax(-1)
    if p == 1:
        return apart.sum(-1)
    return (apart * apart).sum(-1).sqrt() if p == 2 else (apart**p).sum(-1) ** (1 / p)


def _distances_by_product(one: Any, other: Any) -> Any:
    import torch

    squares, other_squares = (value.pow(2).sum(-1, keepdim=True) for value in (one, other))
    left = torch.cat((one * -2, squares, torch.ones_like(squares)), -1)
    right = torch.cat((other, torch.ones_like(other_squares), other_squares), -1)
    return left.matmul(right.mT).clamp_min(0).sqrt()


def _hypotenuse(_: Any, one: Any, other: Any) -> Any:
    return (one * one + other * other).sqrt()


def _products(_: Any, values: Any, dim: int, *, dtype: Any = None) -> Any:
    """As `torch.cumprod`: of each place the product of all up to it."""
    import torch

    values = (values if dtype is None else values.to(dtype)).movedim(dim, -1)
    size = values.shape[-1]
    places = torch.arange(size, device=values.device)
    parts = torch.where(places <= places.unsqueeze(-1), values.unsqueeze(-2), torch.ones_like(values).unsqueeze(-2))
    return parts.prod(-1).movedim(-1, dim)


def _kth(_: Any, values: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return _select_sorted(values, k - 1, dim, keepdim=keepdim, propagates_nan=False)


def _median(_: Any, values: Any, dim: int = -1, keepdim: bool = False) -> Any:
    place = (values.shape[dim] - 1) // 2
    return _select_sorted(values, place, dim, keepdim=keepdim, propagates_nan=values.is_floating_point())


def _median_of_all(_: Any, values: Any) -> Any:
    return _median(None, values.reshape(-1), 0)[0]


def _select_sorted(values: Any, place: Any, dim: int, *, keepdim: bool, propagates_nan: bool) -> Any:
    import torch

    ordered, indices = values.sort(dim)
    found, at = ordered.select(dim, place), indices.select(dim, place)
    if propagates_nan:
        found = torch.where(values.isnan().any(dim), math.nan, found)
    return (found.unsqueeze(dim), at.unsqueeze(dim)) if keepdim else (found, at)


def _repeat(_: Any, repeats: Any, *, output_size: Any = None) -> Any:
    """The indices of what is repeated, of a number that is known."""
    import torch

    if output_size is None:
        return NotImplemented
    places = torch.arange(output_size, device=repeats.device).unsqueeze(-1)
    return (repeats.cumsum(0) <= places).sum(-1, dtype=repeats.dtype)


def _repeat_values(_: Any, values: Any, repeats: Any, dim: int | None = None, *, output_size: Any = None) -> Any:
    if output_size is None:
        return NotImplemented
    if dim is None:
        values, dim = values.reshape(-1), 0
    if repeats.dim() == 0 or repeats.shape[0] == 1:
        repeats = repeats.reshape(1).expand(values.shape[dim])
    return values.index_select(dim, _repeat(None, repeats, output_size=output_size))


def _scatter(operator: Any, values: Any, dim: int, index: Any, source: Any, *how: Any, **named: Any) -> Any:
    """With as much of the source as the index asks for: ONNX takes no more."""
    sizes = (*index.shape, *source.shape)
    if tuple(index.shape) == tuple(source.shape) or not all(isinstance(size, int) for size in sizes):
        return NotImplemented
    for place, size in enumerate(index.shape):
        source = source.narrow(place, 0, size)
    return operator(values, dim, index, source, *how, **named)


_RULES: dict[str, Callable[..., Any]] = {
    "searchsorted.Tensor": _search, "searchsorted.Scalar": _search,
    "cdist.default": _distances, "_cdist_forward.default": _distances, "hypot.default": _hypotenuse,
    "cumprod.default": _products, "kthvalue.default": _kth, "median.dim": _median, "median.default": _median_of_all,
    "repeat_interleave.Tensor": _repeat, "repeat_interleave.self_Tensor": _repeat_values,
    "scatter.src": _scatter, "scatter_add.default": _scatter, "scatter_reduce.two": _scatter,
}  # fmt: skip
"""The decomposition of each overload of an operator."""


def onnx_decompositions() -> dict[Any, Callable[..., Any]]:
    """For `ExportedProgram.run_decompositions`. One gives NotImplemented where ONNX takes the operator as it is."""
    import torch

    made: dict[Any, Callable[..., Any]] = {}
    for name, rule in _RULES.items():
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if operator is not None:
            made[operator] = partial(rule, operator)
    return made


def with_operators_of_onnx(program: Any) -> Any:
    """The program with these operators decomposed. Raises NotApplicable where it has none of them."""
    table = onnx_decompositions()
    if not any(node.target in table for node in program_nodes(program)):
        raise NotApplicable("the program has none of the operators that it decomposes for ONNX")
    return program.run_decompositions(table)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    yield replace(call, passes=(*call.passes, with_operators_of_onnx))


_MISSING = (
    r"op='(?:aten\.(?:searchsorted|_?cdist\w*|hypot|cumprod|kthvalue|median)|prims\.(?:prod|hypot))'"
    r"|aten_repeat_interleave_Tensor\(\)"
)

SHIM = Shim(
    id="decomposed-for-onnx",
    title="Computes operators that ONNX does not have by others: searchsorted, cdist, cumprod, median and their like",
    soundness="exact",
    enter=_enter,
    does=(
        "In the exported program `torch.searchsorted`, `torch.cdist`, `torch.cumprod`, `torch.median`, "
        "`torch.kthvalue`, `torch.hypot`, `torch.repeat_interleave` with `output_size`, and `scatter` of more values "
        "than its index asks for are computed by operators that `torch.onnx` translates: comparisons, sums, sorting. "
        "Some take memory for each pair of values. Of equal values an index may be another one."
    ),
    cures=(
        Cure(kinds=("translate",), message=_MISSING, exporters=("export", "export-strict")),
        Cure(kinds=("run", "load"), message="ScatterElements", exporters=("export", "export-strict")),
    ),
    link="https://docs.pytorch.org/docs/stable/onnx_export.html",
    retire="torch.onnx translates these operators",
    rank=20,
    replaces=(
        Replacement(
            target="operators that ONNX does not have",
            before="places = torch.searchsorted(edges, values)\n",
            after="places = (edges < values.unsqueeze(-1)).sum(-1)\n",
        ),
    ),
)

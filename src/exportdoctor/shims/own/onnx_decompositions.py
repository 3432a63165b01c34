"""Operators that `torch.onnx` does not translate, or not as they are called, computed by operators that it does.

They are decomposed in the exported program, by `ExportedProgram.run_decompositions`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from exportdoctor.core.failure.messages import FIRST_TO_DIFFER, OTHERWISE_DECOMPOSED
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.own.pooling import adapt_dynamic_mean, adapt_max, adapt_mean
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.torch_internals.graph_modules import program_nodes
from exportdoctor.torch_internals.shape_env import is_surely

_ROWS_OF_PRODUCT = 25
"""With more rows on either side torch.cdist takes Euclidean distances from a matrix product."""
_ALWAYS_PRODUCT, _NEVER_PRODUCT = 1, 2
_MOST_ROUNDS = 31
"""Of products of a dynamic number of values: enough for 2**31."""


def _search(
    _: Any, ordered: Any, values: Any, *, right: bool = False, side: str | None = None, sorter: Any = None, **how: Any
) -> Any:
    """How many of the ordered values, none of which is NaN, come before each of these; NaN comes last."""
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
    import torch

    if p == 2 and mode != _NEVER_PRODUCT:
        rows = (one.shape[-2], other.shape[-2])
        if mode == _ALWAYS_PRODUCT or any(isinstance(size, int) and size > _ROWS_OF_PRODUCT for size in rows):
            return _distances_by_product(one, other)
    apart = (one.unsqueeze(-2) - other.unsqueeze(-3)).abs()
    if p == 0:
        return apart.ceil().clamp_max(1).sum(-1)
    if p == math.inf:
        return torch.where(apart.isnan(), 0.0, apart).amax(-1)  # torch leaves them out
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
    """As `torch.hypot`, which overflows only where its result does."""
    import torch

    dtype = torch.result_type(one, other)
    one, other = (_as_compared(value).abs() for value in torch.broadcast_tensors(one, other))
    longer, shorter = torch.maximum(one, other), torch.minimum(one, other)
    ratio = torch.where(longer == 0, longer, shorter / longer)
    infinite = (one == math.inf) | (other == math.inf)
    return torch.where(infinite, math.inf, longer * (1 + ratio * ratio).sqrt()).to(dtype)


def _products(_: Any, values: Any, dim: int, *, dtype: Any = None) -> Any:
    """As `torch.cumprod`: of each place the product of all up to it.

    On the CPU ATen multiplies in the next wider dtype, so that what overflows on the way may come back.
    """
    import torch

    if values.is_complex() or (dtype is not None and dtype.is_complex):
        return NotImplemented
    values = values if dtype is None else values.to(dtype)
    result = values.dtype if values.is_floating_point() or dtype is not None else torch.int64
    if values.dim() == 0:
        return values.to(result, copy=True)
    values = values.movedim(dim, -1)
    wider = {torch.float32: torch.float64, torch.float64: torch.float64}.get(values.dtype, torch.float32)
    if not values.is_floating_point():
        return _whole_products(values.to(torch.int64)).movedim(-1, dim).to(result)
    values = values.to(wider)
    size = values.shape[-1]
    places = torch.arange(size, device=values.device)
    parts = torch.where(places <= places.unsqueeze(-1), values.unsqueeze(-2), torch.ones_like(values).unsqueeze(-2))
    return parts.prod(-1).movedim(-1, dim).to(result)


def _whole_products(values: Any) -> Any:
    """Along the last dimension, of int64: each round multiplies by the product of twice as many before. ONNX Runtime
    computes ReduceProd of them in float64."""
    import torch

    size = values.shape[-1]
    places = torch.arange(size, device=values.device)
    for exponent in range((size - 1).bit_length() if isinstance(size, int) else _MOST_ROUNDS):
        before = places - 2**exponent
        earlier = values.index_select(-1, before.clamp_min(0))
        values = values * torch.where(before >= 0, earlier, 1)
    return values


def _cumulative_extreme(_: Any, values: Any, dim: int, *, highest: bool) -> Any:
    """As `torch.cummax` and `torch.cummin`: NaN counts as an extreme, and of equal values the last one is told."""
    import torch

    if values.dim() == 0:
        return values.clone(), torch.zeros((), dtype=torch.int64, device=values.device)
    values = values.movedim(dim, -1)
    keys, missing = _as_compared(values), None
    if keys.is_floating_point():
        lowest: float = -math.inf if highest else math.inf
        missing = keys.isnan()
        keys = torch.where(missing, lowest, keys)
    else:
        lowest = torch.iinfo(keys.dtype).min if highest else torch.iinfo(keys.dtype).max
    places = torch.arange(values.shape[-1], device=values.device)
    before = places <= places.unsqueeze(-1)
    up_to = torch.where(before, keys.unsqueeze(-2), lowest)
    up_to = torch.cat((up_to, up_to.new_full((*up_to.shape[:-1], 1), lowest)), -1)  # there may be no value
    found = keys.unsqueeze(-2) == (up_to.amax(-1, keepdim=True) if highest else up_to.amin(-1, keepdim=True))
    if missing is not None:
        after_missing = (missing.to(torch.int64).cumsum(-1) > 0).unsqueeze(-1)
        found = (after_missing & missing.unsqueeze(-2)) | (~after_missing & found)
    found = found & before
    indices = torch.where(found, places, -1)
    indices = torch.cat((indices, indices.new_full((*indices.shape[:-1], 1), -1)), -1).amax(-1)
    return values.gather(-1, indices).movedim(-1, dim), indices.movedim(-1, dim)


def _as_compared(values: Any) -> Any:
    """In the dtype in which ONNX Runtime computes with them without rounding."""
    import torch

    if not values.is_floating_point():
        return values.to(torch.int64)
    return values.to(torch.float32) if values.dtype in (torch.float16, torch.bfloat16) else values


def _inverse_error_function(_: Any, values: Any) -> Any:
    """As ATen's kernel for the CPU, `calc_erfinv`: rational functions, then two steps of Newton's method."""
    import torch

    values = values if values.is_floating_point() else values.to(torch.get_default_dtype())
    exact = _as_compared(values)
    size, square = exact.abs(), exact * exact
    near = (((-0.140543331 * square + 0.914624893) * square - 1.645349621) * square + 0.886226899) / (
        (((0.012229801 * square - 0.329097515) * square + 1.442710462) * square - 2.118377725) * square + 1.0
    )
    tail = (-((1.0 - size.clamp_max(1.0)) / 2.0).log()).sqrt()
    far = (((1.641345311 * tail + 3.429567803) * tail - 1.624906493) * tail - 1.970840454) / (
        (1.637067800 * tail + 3.543889200) * tail + 1.0
    )
    found = torch.where(size <= 0.7, exact * near, torch.sign(exact) * far)
    for _step in range(2):
        found = found - (torch.erf(found) - exact) / (2.0 / math.sqrt(math.pi) * (-found * found).exp())
    found = torch.where(size == 1, torch.sign(exact) * math.inf, torch.where(size > 1, math.nan, found))
    return found.to(values.dtype)


def _with_sign_of(_: Any, values: Any, other: Any) -> Any:
    """As `torch.copysign`, which takes the sign of a zero, too."""
    import torch

    dtype = torch.result_type(values, other)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    size = values.to(dtype).abs()
    if not isinstance(other, torch.Tensor):
        return -size if math.copysign(1.0, other) < 0 else size
    negative = other < 0
    if other.is_floating_point():
        negative = negative | ((other == 0) & (other.reciprocal() < 0))
    return torch.where(negative, -size, size)


def _kth(_: Any, values: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """As `torch.kthvalue`, for which NaN comes last."""
    import torch

    if not values.is_floating_point() or not values.dim():
        return _select_sorted(values, k - 1, dim, keepdim=keepdim, propagates_nan=False)
    values = values.movedim(dim, -1)
    missing = values.isnan()  # ONNX Runtime puts it anywhere
    ordered = torch.where(missing, math.inf, values).sort(-1).values
    is_missing = (~missing).sum(-1) < k
    found = torch.where(is_missing, math.nan, ordered.select(-1, k - 1))
    same = torch.where(is_missing.unsqueeze(-1), missing, values == found.unsqueeze(-1))
    places = torch.arange(values.shape[-1], device=values.device)
    at = torch.where(same, places, values.shape[-1]).amin(-1)
    return (found.unsqueeze(dim), at.unsqueeze(dim)) if keepdim else (found, at)


def _median(_: Any, values: Any, dim: int = -1, keepdim: bool = False) -> Any:
    place = (values.shape[dim] - 1) // 2 if values.dim() else 0
    return _select_sorted(values, place, dim, keepdim=keepdim, propagates_nan=values.is_floating_point())


def _median_of_all(_: Any, values: Any) -> Any:
    return _median(None, values.reshape(-1), 0)[0]


def _select_sorted(values: Any, place: Any, dim: int, *, keepdim: bool, propagates_nan: bool) -> Any:
    import torch

    if values.dim() == 0:
        return values.clone(), torch.zeros((), dtype=torch.int64, device=values.device)
    ordered, indices = values.sort(dim)
    found, at = ordered.select(dim, place), indices.select(dim, place)
    if propagates_nan:
        missing, places = values.movedim(dim, -1).isnan(), torch.arange(values.shape[dim], device=values.device)
        first = torch.where(missing, places, values.shape[dim]).amin(-1)
        some = missing.any(-1)
        found, at = torch.where(some, math.nan, found), torch.where(some, first, at)
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
    if all(is_surely(one == other) for one, other in zip(index.shape, source.shape, strict=True)):
        return NotImplemented
    for place, size in enumerate(index.shape):
        source = source.narrow(place, 0, size)
    return operator(values, dim, index, source, *how, **named)


def _reduce(
    operator: Any, values: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """As `scatter_reduce`: torch.onnx translates "mean" to what keeps one of the values."""
    import torch

    if reduce != "mean" or not values.dim():
        return _scatter(operator, values, dim, index, source, reduce, include_self=include_self)
    for place, size in enumerate(index.shape):
        source = source.narrow(place, 0, size)
    counts = torch.zeros_like(values).scatter_add(dim, index, torch.ones_like(source))
    total = (values if include_self else torch.where(counts > 0, 0, values)).scatter_add(dim, index, source)
    counts = counts + 1 if include_self else counts.clamp_min(1)
    return total / counts if values.is_floating_point() else total.div(counts, rounding_mode="floor")


def _select_masked(_: Any, values: Any, mask: Any) -> Any:
    import torch

    values, mask = torch.broadcast_tensors(values, mask)
    return values[mask]


def _sort(_: Any, values: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """ONNX's TopK, to which `sort` is translated, is stable."""
    return values.sort(dim, descending)


def _argsort(_: Any, values: Any, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    return values.sort(dim, descending)[1]


def _choose_flags(_: Any, chosen: Any, one: Any, other: Any) -> Any:
    """As `torch.where` of two bools, for which ONNX Runtime has no kernel."""
    import torch

    are_flags = all(type(value) is bool or getattr(value, "dtype", None) is torch.bool for value in (one, other))
    if not are_flags or not (isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor)):
        return NotImplemented
    return (chosen & one) | (~chosen & other)


def _attend(
    _: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """As `scaled_dot_product_attention`, which gives zeros where a mask leaves nothing to attend to. torch.onnx takes
    it with four dimensions alone."""
    import torch

    if dropout_p or (attn_mask is None and query.dim() == 4):
        return NotImplemented
    if attn_mask is None:
        rows, columns = query.shape[-2], key.shape[-2]
        attn_mask = torch.ones(rows, columns, dtype=torch.bool, device=query.device)
        attn_mask = attn_mask.tril() if is_causal else attn_mask
    dtype, wider = query.dtype, torch.promote_types(query.dtype, torch.float32)
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (one.unsqueeze(-3).expand(*one.shape[:-2], times, *one.shape[-2:]).flatten(-4, -3)
                      for one in (key, value))  # fmt: skip
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query.to(wider).matmul(key.to(wider).mT) * scale
    if attn_mask.dtype is torch.bool:
        scores = torch.where(attn_mask, scores, -math.inf)
    else:
        scores = scores + attn_mask.to(wider)
    none = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.where(none, 0.0, torch.where(none, 0.0, scores).softmax(-1))
    return weights.matmul(value.to(wider)).to(dtype)


def _add_flags(_: Any, one: Any, other: Any, *, alpha: Any = 1) -> Any:
    """As the sum of bools, for which ONNX has no Add."""
    import torch

    are_flags = all(type(value) is bool or getattr(value, "dtype", None) is torch.bool for value in (one, other))
    return one | other if are_flags and alpha == 1 else NotImplemented


def _fill_flags(_: Any, flags: Any, mask: Any, value: Any) -> Any:
    """As `masked_fill` of bools, for which ONNX Runtime has no Where."""
    import torch

    if flags.dtype is not torch.bool:
        return NotImplemented
    value = value.to(torch.bool) if isinstance(value, torch.Tensor) else bool(value)
    return (mask & value) | (~mask & flags)


def _extremes(_: Any, values: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """As `torch.aminmax`; of all values where `dim` is None."""
    dims = tuple(range(values.dim())) if dim is None else (dim,)
    return tuple(found(dims, keepdim) for found in (values.amin, values.amax)) if values.dim() else (values, values)


def _average(
    operator: Any, values: Any, kernel: Any, *args: Any, divisor_override: int | None = None, **how: Any
) -> Any:
    """As average pooling with a divisor of its own, which torch.onnx leaves out."""
    given = dict(zip(("stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"), args, strict=False))
    given |= how
    divisor = given.pop("divisor_override", divisor_override)
    if divisor is None or given.get("ceil_mode"):
        return NotImplemented
    sizes = list(kernel) * (2 if "2d" in str(operator) else 3) if len(kernel) == 1 else kernel
    found = operator(values, kernel, **{**given, "count_include_pad": True})
    return found * (math.prod(sizes) / divisor)


def _multiply_whole(_: Any, added: Any, one: Any, other: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """As `torch.addmm` of whole numbers, for which ONNX Runtime has no Gemm."""
    is_whole = not one.is_floating_point() and not one.is_complex()
    return added * beta + one.mm(other) * alpha if is_whole else NotImplemented


def _apply_whole(_: Any, values: Any, weight: Any, bias: Any = None) -> Any:
    """As `torch.nn.functional.linear` of whole numbers, for which ONNX Runtime has no Gemm."""
    if values.is_floating_point() or values.is_complex():
        return NotImplemented
    found = values.matmul(weight.mT)
    return found if bias is None else found + bias


def _extreme_without_nan(_: Any, one: Any, other: Any, *, highest: bool) -> Any:
    """As `torch.fmax` and `torch.fmin`, which leave NaN out."""
    import torch

    dtype = torch.result_type(one, other)
    one, other = one.to(dtype), other.to(dtype)
    both = torch.maximum(one, other) if highest else torch.minimum(one, other)
    if not dtype.is_floating_point:
        return both
    return torch.where(one.isnan(), other, torch.where(other.isnan(), one, both))


_RULES: dict[str, Callable[..., Any]] = {
    "searchsorted.Tensor": _search, "searchsorted.Scalar": _search,
    "cdist.default": _distances, "_cdist_forward.default": _distances, "hypot.default": _hypotenuse,
    "cumprod.default": _products, "kthvalue.default": _kth, "median.dim": _median, "median.default": _median_of_all,
    "repeat_interleave.Tensor": _repeat, "repeat_interleave.self_Tensor": _repeat_values,
    "cummax.default": partial(_cumulative_extreme, highest=True),
    "cummin.default": partial(_cumulative_extreme, highest=False),
    "erfinv.default": _inverse_error_function, "copysign.Tensor": _with_sign_of, "copysign.Scalar": _with_sign_of,
    "scatter.src": _scatter, "scatter_add.default": _scatter, "scatter_reduce.two": _reduce,
    "masked_select.default": _select_masked, "sort.stable": _sort, "argsort.stable": _argsort,
    "where.self": _choose_flags, "where.ScalarOther": _choose_flags, "where.ScalarSelf": _choose_flags,
    "linear.default": _apply_whole, "scaled_dot_product_attention.default": _attend, "add.Tensor": _add_flags,
    "masked_fill.Scalar": _fill_flags, "masked_fill.Tensor": _fill_flags, "aminmax.default": _extremes,
    "avg_pool2d.default": _average, "avg_pool3d.default": _average,
    "adaptive_avg_pool1d.default": adapt_mean, "adaptive_avg_pool2d.default": adapt_dynamic_mean,
    "_adaptive_avg_pool2d.default": adapt_dynamic_mean,
    **{f"adaptive_max_pool{n}d.default": partial(adapt_max, dims=n) for n in (1, 2, 3)},
    "_adaptive_avg_pool3d.default": adapt_mean, "adaptive_avg_pool3d.default": adapt_mean,
    "addmm.default": _multiply_whole, "fmax.default": partial(_extreme_without_nan, highest=True),
    "fmin.default": partial(_extreme_without_nan, highest=False),
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
    named = {str(operator): operator for operator in table}
    decomposed = any(
        (operator := named.get(_functional_name(node.target))) is not None and not _is_translated(node, operator)
        for node in program_nodes(program)
    )
    if not decomposed and not any(map(_may_round_up, program_nodes(program))):
        raise NotApplicable("the program has none of the operators that it decomposes for ONNX")
    program = program.run_decompositions(table) if decomposed else program
    for node in [one for one in program_nodes(program) if _may_round_up(one)]:
        _divide_without_rest(node)
    return program


def _may_round_up(node: Any) -> bool:
    """Whether it is `//` of whole numbers of Python that may be negative: ONNX's Div rounds towards zero."""
    if node.target is not operator.floordiv:
        return False
    values = [getattr(one, "meta", {}).get("val", one) for one in node.args]
    return not all(is_surely(value >= 0) for value in values)


def _divide_without_rest(node: Any) -> None:
    """`a // b` as `(a - a % b) // b`, of which the division is exact."""
    number, by = node.args
    value, divisor = (getattr(one, "meta", {}).get("val", one) for one in node.args)
    with node.graph.inserting_before(node):
        rest = node.graph.call_function(operator.mod, (number, by))
        whole = node.graph.call_function(operator.sub, (number, rest))
    rest.meta, whole.meta = {**node.meta, "val": value % divisor}, {**node.meta, "val": value - value % divisor}
    node.args = (whole, by)


def _functional_name(target: Any) -> str:
    """The name of an operator, of one that writes in place that of the one that gives the same."""
    packet, dot, overload = str(target).rpartition(".")
    return f"{packet.removesuffix('_')}{dot}{overload}"


def _is_translated(node: Any, operator: Any) -> bool:
    """Whether ONNX Runtime has the operator for these values: `where` and `add` for other values than bools, `addmm`
    for floating point numbers, and attention without a mask."""
    import torch

    dtype, aten = getattr(node.meta.get("val"), "dtype", None), torch.ops.aten
    if operator in (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.add.Tensor):
        return dtype is not torch.bool
    if operator in (aten.addmm.default, aten.linear.default):
        return dtype is None or dtype.is_floating_point or dtype.is_complex
    if operator in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
        return dtype is not torch.bool
    if operator in (aten.avg_pool2d.default, aten.avg_pool3d.default):
        return len(node.args) < 7 and node.kwargs.get("divisor_override") is None
    if "adaptive_avg_pool2d" in str(operator):
        sizes = getattr(node.args[0].meta.get("val"), "shape", ())[-2:]
        return all(isinstance(size, int) for size in sizes)
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    attends = operator is aten.scaled_dot_product_attention.default
    return attends and mask is None and getattr(node.meta.get("val"), "ndim", 4) == 4


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    yield replace(call, passes=(*call.passes, with_operators_of_onnx))


_MISSING = (
    r"op='(?:aten\.(?:searchsorted|_?cdist\w*|hypot|cumprod|cummax|cummin|kthvalue|median|erfinv|copysign"
    r"|masked_select|sort|_?adaptive_(?:max|avg)_pool\dd)"
    r"|prims\.(?:prod|hypot|erf_inv|signbit|fmax|fmin))'"
    r"|aten_repeat_interleave_Tensor\(\)|only 4D query, key, and value are supported|aten_amin\(self"
)

_NO_KERNEL = r"implementation for (?:Where|Gemm)\(|'tensor\(bool\)' of input parameter \([^)]*\) of operator \(Add\)"
_WRONG_RULES = "|".join(map(re.escape, _RULES))
_WRONG = (
    rf"{re.escape(OTHERWISE_DECOMPOSED)}"
    rf"|{re.escape(FIRST_TO_DIFFER)}(?:aten\.(?:{_WRONG_RULES})|operator\.floordiv):"
)

SHIM = Shim(
    id="decomposed-for-onnx",
    title="Computes operators that ONNX does not have by others: searchsorted, cdist, cummax, median and their like",
    soundness="exact",
    enter=_enter,
    does=(
        "Operators that `torch.onnx` does not translate are computed by others in the exported program: "
        "`torch.searchsorted`, `cdist`, `cumprod`, `cummax`, `cummin`, `median`, `kthvalue`, `hypot`, `copysign`, "
        "`erfinv`, `masked_select`, `fmax`, `fmin`, `aminmax`, `repeat_interleave` with `output_size`, stable sorting, "
        "adaptive pooling, attention of three dimensions. So are those whose file gives other values: "
        "`scatter_reduce` of means, average pooling with a divisor of its own, `//` of whole numbers that may be "
        "negative, and attention where a mask leaves nothing to attend to, which gives zeros; and those for which "
        "ONNX Runtime has no kernel: `where`, `masked_fill` and sums of bools, `addmm` of whole numbers, `scatter` of "
        "more values than its index asks for. "
        "Some take memory for each pair of values. Of equal values an index may be another one. Values in which "
        "`torch.searchsorted` searches, and those that are sorted, must not be NaN, and a NaN has no sign for "
        "`torch.copysign`. ONNX Runtime "
        "has no error function in float64."
    ),
    cures=(
        Cure(kinds=("translate",), message=_MISSING, exporters=("export", "export-strict")),
        Cure(kinds=("run", "load"), message="ScatterElements", exporters=("export", "export-strict")),
        Cure(kinds=("run",), message=re.escape(OTHERWISE_DECOMPOSED), exporters=("export", "export-strict")),
        Cure(kinds=("numbers",), message=_WRONG, exporters=("export", "export-strict")),
        Cure(kinds=("load",), message=_NO_KERNEL, exporters=("export", "export-strict")),
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

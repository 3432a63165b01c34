"""How far one value is from another, and whether that is an error: rounding, ties and double indices are none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy
import torch

from exportdoctor.core.protocol.numbers_ladder import Side
from exportdoctor.report.wording import ladder as wording
from exportdoctor.worker.numbers.step_graph import AxisOfChoice, Float64Run
from exportdoctor.worker.prove.allowed_error import RELATIVE
from exportdoctor.worker.prove.compare_outputs import LARGEST, allowed_by_own_size, as_strided, largest_difference
from exportdoctor.worker.prove.quick_difference import MANY, SMALLEST_SCALE, find_quick_difference, may_hold_fill_values

_SHARES = {
    torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2,
    torch.float8_e4m3fn: 0.126, torch.float8_e4m3fnuz: 0.126, torch.float8_e5m2: 0.251, torch.float8_e5m2fnuz: 0.251,
}  # fmt: skip
"""What rounding may do to one operation, by dtype, as a share of the numbers around an element: tens of units in the
last place, as a long sum in another order has them, and one unit in eight bits, in which nothing is summed."""

_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}

_AS_FAR = 4
"""A side that is so many times farther from the float64 value than the other is the wrong one."""

_CHOOSING = frozenset(
    {"topk", "argmax", "argmin", "sort", "argsort", "max", "min", "msort", "kthvalue", "median", "mode"}
)
_WRITING = ("scatter", "index_put", "index_copy")

_UNWRITTEN = re.compile(r"(?:^|\.)(?:new_)?empty(?:_like|_strided|_permuted)?(?:\.|$)")


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The largest absolute difference, and what is allowed of it. `trouble`: they differ in kind.

    `plain`: the reference was seen to be finite and without fill values, so that a plain difference to it says enough.
    """

    absolute: float = 0.0
    allowed: float = 0.0
    trouble: str = ""
    plain: bool = False

    @property
    def holds(self) -> bool:
        """Whether it is within what the dtype allows."""
        return not self.trouble and self.absolute <= self.allowed


def gap_between(
    found: Any,
    wanted: torch.Tensor,
    *,
    whole: bool = False,
    computed_in: torch.dtype | None = None,
    by_own_size: bool = False,
) -> Gap:
    """Of one operation; of a `whole` run by what is allowed of a stage's outputs. Floats of two dtypes are held to what
    the lower one allows, or that in which they were computed; values that are small throughout to their own size, if
    `by_own_size`.

    Of equal values `allowed` is what any value is allowed at least: its rows and channels are not looked at.
    """
    if not isinstance(found, torch.Tensor):
        found = torch.as_tensor(found)
    if found.shape != wanted.shape:
        trouble = f"has the shape {list(found.shape)} instead of {list(wanted.shape)}"
        return Gap(absolute=LARGEST, trouble=trouble)
    if found.is_floating_point() != wanted.is_floating_point() and found.dtype != wanted.dtype:
        return Gap(absolute=LARGEST, trouble=f"is {_name(found)} instead of {_name(wanted)}")
    if found.dtype != wanted.dtype and _UNSIGNED & {found.dtype, wanted.dtype} and not wanted.is_complex():
        return _gap_of_whole_numbers(found, wanted)
    shares = RELATIVE if whole else _SHARES
    dtypes = (found.dtype, wanted.dtype, *([computed_in] if computed_in is not None else []))
    share = max(shares.get(one, shares[torch.float32]) for one in dtypes)
    gap = _quick_gap(found, wanted, share)
    if gap is None and found.dtype == wanted.dtype and found.device == wanted.device and torch.equal(found, wanted):
        return no_gap(wanted)
    if gap is None:
        absolute, _, allowed = largest_difference(found, wanted, share=share)
        gap = Gap(absolute=absolute, allowed=allowed)
    strict = allowed_by_own_size(wanted, share) if by_own_size and gap.holds and gap.absolute else gap.allowed
    return replace(gap, allowed=strict, plain=False) if strict < gap.absolute else gap


def _gap_of_whole_numbers(found: torch.Tensor, wanted: torch.Tensor) -> Gap:
    """Of an unsigned dtype and another one, between which torch does not compare."""
    one, other = found.to(torch.int64), wanted.to(torch.int64)
    apart = one != other
    if torch.uint64 in (found.dtype, wanted.dtype):
        apart |= one < 0  # one side is beyond int64, or negative
    return Gap(absolute=float(apart.sum()))


def gap_in_words(name: str, gap: Gap, found: Any, wanted: torch.Tensor) -> str:
    """What is wrong with a value; of infinities and NaN how many elements have them on one side only."""
    if not gap.trouble and not wanted.is_floating_point() and not wanted.is_complex():
        return wording.elements_differ(name, int(gap.absolute))
    if not gap.trouble and gap.absolute >= LARGEST:
        found, wanted = (as_strided(torch.as_tensor(one)).detach().cpu() for one in (found, wanted))
        if one_sided := int((found.isfinite() != wanted.isfinite()).sum()):
            return wording.finite_on_one_side(name, one_sided)
        alike = (found == wanted) | (found.isnan() & wanted.isnan()) | wanted.isfinite()
        if unlike := int((~alike).sum()):
            return wording.otherwise_not_finite(name, unlike)
    return wording.value_differs(name, gap.absolute, gap.allowed, gap.trouble)


def no_gap(wanted: torch.Tensor) -> Gap:
    """That of equal values."""
    share = _SHARES.get(wanted.dtype, _SHARES[torch.float32])
    return Gap(allowed=share * SMALLEST_SCALE if wanted.is_floating_point() else 0.0)


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BLOCK = 1 << 18
"""Elements that are compared at once, so that they stay in a processor's cache."""


def same_bits(one: Any, other: torch.Tensor) -> bool:
    """Whether the two are equal to the last bit, so that whatever is made of them is."""
    if not isinstance(one, torch.Tensor) or one.dtype != other.dtype:
        return False
    if one.shape != other.shape or one.device != other.device or one.layout != other.layout:
        return False
    kind = _BITS.get(one.element_size())
    if (
        kind is None
        or one.layout != torch.strided
        or one.is_conj()
        or one.is_neg()
        or other.is_conj()
        or other.is_neg()
    ):
        return False
    one, other = one.detach().view(kind), other.detach().view(kind)
    if one.device.type != "cpu":
        return torch.equal(one, other)
    left, right = one.numpy(), other.numpy()  # torch.equal takes five times as long (2.13)
    if not (one.is_contiguous() and other.is_contiguous()):
        return numpy.array_equal(left, right)
    left, right = left.reshape(-1), right.reshape(-1)
    blocks = range(0, left.size, _BLOCK)
    return all(numpy.array_equal(left[at : at + _BLOCK], right[at : at + _BLOCK]) for at in blocks)


_KEPT: dict[str, torch.Tensor] = {}


def _scratch(use: str, like: torch.Tensor) -> torch.Tensor:
    """Memory for a float32 tensor of this shape, used again: fresh pages would cost more than the difference does."""
    if use not in _KEPT or _KEPT[use].numel() < like.numel() or _KEPT[use].device != like.device:
        _KEPT[use] = torch.empty(like.numel(), dtype=torch.float32, device=like.device)
    return _KEPT[use][: like.numel()].view(like.shape)


def forget_scratch() -> None:
    """Give the memory back."""
    _KEPT.clear()


def _quick_gap(found: torch.Tensor, wanted: torch.Tensor, share: float) -> Gap | None:
    """The same in float32, in a few passes, where all is finite, nothing is a fill value and nothing beyond its bound.

    None elsewhere.
    """
    if not found.dtype == wanted.dtype == torch.float32 or wanted.numel() < MANY:
        return None
    if same_bits(found, wanted):
        return no_gap(wanted)
    quick = find_quick_difference(found, wanted, share, memory=_scratch)
    if quick is None:
        return None
    return Gap(absolute=quick.absolute, allowed=quick.allowed, plain=True) if quick.absolute else no_gap(wanted)


def inherited_gap(found: Any, wanted: torch.Tensor, local: Gap) -> Gap:
    """As `gap_between`, without looking for what is allowed of floats where the local difference did not need it."""
    alike = isinstance(found, torch.Tensor) and (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    alike = alike and wanted.dtype == torch.float32 and found.device == wanted.device
    if alike and (local.plain or _is_plain(wanted)):
        low, high = torch.aminmax(torch.sub(found, wanted, out=_scratch("apart", wanted)))
        if isfinite(largest := max(-float(low), float(high))):
            return Gap(absolute=largest, allowed=LARGEST)
    return gap_between(found, wanted)


_NO_FILL_ABOVE = 2.0**13
"""Where no magnitude is larger, a difference at a fill value is too small to hide another one."""


def _is_plain(wanted: torch.Tensor) -> bool:
    """Whether it is known to be finite, and without fill values whose rounding would hide other differences."""
    if wanted.dtype != torch.float32 or wanted.numel() < MANY:
        return False
    wanted = wanted.detach()
    low, high = torch.aminmax(wanted)
    whole = max(-float(low), float(high))
    if not isfinite(whole):
        return False
    return whole <= _NO_FILL_ABOVE or not may_hold_fill_values(torch.abs(wanted, out=_scratch("sizes", wanted)), whole)


def _name(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def judge_by_float64(found: torch.Tensor, wanted: torch.Tensor, run: Float64Run | None) -> tuple[Side, bool]:
    """Which side is nearer to the value in float64, and whether rounding explains both. Unknown where none is."""
    try:
        truth = run() if run is not None else None
    except Exception:
        return "unknown", False
    if not isinstance(truth, torch.Tensor) or truth.shape != wanted.shape or not truth.is_floating_point():
        return "unknown", False
    of_found, of_wanted = _distance(found, truth), _distance(wanted, truth)
    if of_found <= _AS_FAR * of_wanted < LARGEST:
        return ("candidate", False) if of_found * _AS_FAR < of_wanted else ("neither", True)
    return "reference", False


def _distance(one: torch.Tensor, truth: torch.Tensor) -> float:
    high, truth = one.detach().cpu().double().flatten(), truth.detach().cpu().double().flatten()
    same = (high == truth) | (high.isnan() & truth.isnan())
    apart = torch.where(same, 0.0, (high - truth).abs()).nan_to_num(nan=float("inf"))
    return min(float(apart.max()), LARGEST) if apart.numel() else 0.0


def _base(op: str) -> str:
    """`topk` of `aten.topk.default` and of `TopK`."""
    return op.removeprefix("aten.").partition(".")[0].strip("_").lower()


def chooses_or_writes(op: str) -> bool:
    """Whether the operator chooses elements, or writes some at indices."""
    return _base(op) in _CHOOSING or any(word in _base(op) for word in _WRITING)


def is_choosing(op: str) -> bool:
    """Whether the operator chooses elements."""
    return _base(op) in _CHOOSING


def is_unwritten(op: str) -> bool:
    """Whether what an operator gives is what memory held before."""
    return _UNWRITTEN.search(op) is not None


def axis_of_choice(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AxisOfChoice:
    """That of a call of a function or an operator of torch."""
    base = _base(op)
    place = 2 if base in ("topk", "kthvalue") else 1
    none = "flat" if base in ("argmax", "argmin") else -1
    dim = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else none))
    return dim if type(dim) is int else "flat" if dim in (None, "flat") else "unknown"


def is_tie(
    op: str,
    found: torch.Tensor,
    wanted: torch.Tensor,
    inputs: Sequence[Any],
    *,
    axis: AxisOfChoice = "unknown",
    slack: float = 0.0,
) -> bool:
    """Whether two sets of indices choose equal values of the first input along one dimension: `axis`, or any that fits
    where it is unknown.

    `slack`: how far the values may be apart, as a share of the largest.
    """
    source = next((one for one in inputs if isinstance(one, torch.Tensor)), None)
    if _base(op) not in _CHOOSING or source is None or wanted.is_floating_point() or found.shape != wanted.shape:
        return False
    if source.is_complex() or source.dim() == 0:
        return False
    flat = source.flatten()
    among_all = axis == "flat" or (axis == "unknown" and wanted.numel() == 1)
    choices = [(flat, 0, found.flatten(), wanted.flatten())] if among_all else []
    for dim in range(source.dim()) if axis == "unknown" else [axis % source.dim()] if axis != "flat" else []:
        for one, other in ((found, wanted), (found.unsqueeze(dim), wanted.unsqueeze(dim))):
            others = [size for place, size in enumerate(one.shape) if place != dim]
            if one.dim() == source.dim() and others == [s for place, s in enumerate(source.shape) if place != dim]:
                choices.append((source, dim, one, other))
    return any(_choose_equal(*choice, slack=slack) for choice in choices)


def _choose_equal(source: torch.Tensor, dim: int, found: torch.Tensor, wanted: torch.Tensor, *, slack: float) -> bool:
    size = source.shape[dim]
    if not all(bool(((one >= 0) & (one < size)).all()) for one in (found, wanted)):
        return False
    a, b = source.gather(dim, found.long()), source.gather(dim, wanted.long())
    distinct = found.dim() == 0 or bool((found.sort(dim).values.diff(dim=dim) != 0).all())
    near = (a - b).abs() <= slack * source.abs().max() if slack and source.is_floating_point() else a == b
    return distinct and bool((near | (a.isnan() & b.isnan())).all())


def is_written_twice(
    op: str, found: torch.Tensor, wanted: torch.Tensor, inputs: Sequence[Any], *, stands_for: Sequence[str] = ()
) -> bool:
    """Whether a scatter differs only where it wrote several values, of which either may stay.

    `stands_for` are the names of the operators whose result it is: one that adds, or reduces otherwise, what is written
    to one place has one right answer.
    """
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    if not any(word in _base(op) for word in _WRITING) or found.shape != wanted.shape:
        return False
    if any(word in _base(one) for one in (op, *stands_for) for word in ("add", "reduce")):
        return False
    indices = [one.long() for one in tensors[1:] if one.dtype in (torch.int64, torch.int32)]
    differs = (found != wanted) & ~((found != found) & (wanted != wanted))
    given = torch.cat([one.flatten().to(found.dtype) for one in tensors])
    written = all(bool(torch.isin(one[differs].to(found.dtype), given).all()) for one in (found, wanted))
    return written and any(bool((count[differs] > 1).all()) for count in _times_written(_base(op), indices, wanted))


def _times_written(op: str, indices: Sequence[torch.Tensor], wanted: torch.Tensor) -> Iterator[torch.Tensor]:
    """How often each element is written, for each dimension along which the indices could count."""
    none = torch.zeros(wanted.shape, dtype=torch.int64)
    by_element = op in ("scatter", "scatterelements", "index_copy")
    for dim in range(wanted.dim() if by_element else 1):
        with suppress(RuntimeError, IndexError):
            index = indices[0]
            if op == "index_copy":
                index = index.view([-1 if place == dim else 1 for place in range(none.dim())])
                index = index.expand([index.numel() if place == dim else size for place, size in enumerate(none.shape)])
            if by_element:
                yield none.scatter_add(dim, index, torch.ones_like(index))
            else:
                columns = tuple(index.unbind(-1)) if op == "scatternd" else tuple(indices)
                yield none.index_put(columns, torch.ones((), dtype=torch.int64), accumulate=True)

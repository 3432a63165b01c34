"""The quick way to compare two values of a walk says the same as the thorough one, or leaves it to that."""

from __future__ import annotations

import pytest
import torch

from exportdoctor.worker.numbers.value_gap import forget_scratch, gap_between
from exportdoctor.worker.prove.allowed_error import RELATIVE, is_fill_value
from exportdoctor.worker.prove.compare_outputs import largest_difference, largest_difference_by_element
from exportdoctor.worker.prove.quick_difference import is_all_computed, may_hold_fill_values

SHARE = 1e-5


def values(kind: str) -> torch.Tensor:
    torch.manual_seed(3)
    plain = torch.randn(4, 40, 64)
    match kind:
        case "filled":
            return plain.masked_fill(plain > 1.5, torch.finfo(torch.float32).min)
        case "a small cluster":
            return torch.where(plain > 0, plain.abs() + 0.1, 1e-9)
        case "one small row":
            return plain * torch.tensor([1.0, 1e-4, 1e-4, 1e4]).view(4, 1, 1)
        case "a few small ones":
            return torch.where(torch.arange(plain.numel()).view(plain.shape) % 1500 == 7, 1e-12, plain.abs() + 0.1)
        case "zeros":
            return plain.relu()
        case "infinite":
            return plain.masked_fill(plain > 2, float("inf"))
        case "narrow":
            return plain.reshape(-1, 4)
        case "flat":
            return plain.flatten()
    return plain


KINDS = (
    "plain",
    "filled",
    "a small cluster",
    "a few small ones",
    "one small row",
    "zeros",
    "infinite",
    "narrow",
    "flat",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [1e-8, 1e-6, 3e-5, 1e-2])
def test_both_ways_agree(kind: str, error: float) -> None:
    wanted = values(kind)
    found = wanted + error * torch.randn(wanted.shape)
    absolute, _, allowed = largest_difference_by_element(found, wanted, SHARE)
    gap = gap_between(found, wanted)
    assert gap.holds == (absolute <= allowed)
    assert (gap.absolute, gap.allowed) == pytest.approx((absolute, allowed), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("error", [0.0, 1e-6, 3e-3, 0.3])
def test_outputs_are_compared_as_each_element_is(kind: str, dtype: torch.dtype, error: float) -> None:
    wanted = values(kind).to(dtype)
    found = (wanted.double() * (1 + error * torch.randn(wanted.shape))).to(dtype)
    share = RELATIVE[dtype]
    quick = largest_difference(found, wanted, share=share)
    absolute, relative, allowed = largest_difference_by_element(found, wanted, share)
    assert (quick[0] <= quick[2]) == (absolute <= allowed)
    if error or absolute:  # of equal values any element's bound may be told
        assert quick == pytest.approx((absolute, relative, allowed), rel=1e-3)


@pytest.mark.parametrize("kind", ["plain", "flat", "zeros"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [0, 77, -1])
def test_one_element_that_is_no_number_is_a_difference(kind: str, wrong: float, where: int) -> None:
    wanted = values(kind)
    found = wanted.clone()
    found.view(-1)[where] = wrong
    for one, other in ((found, wanted), (wanted, found)):
        absolute, _, allowed = largest_difference(one, other)
        assert absolute > allowed
    assert largest_difference(found, found.clone())[0] == 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "infinite"])
def test_no_fill_value_is_missed(kind: str) -> None:
    """Of what is finite: where an element is not, nobody asks."""
    sizes = values(kind).abs()
    assert bool(sizes.isfinite().all())
    holds = bool(is_fill_value(values(kind)).any())
    assert holds == (kind in ("filled", "a small cluster"))
    assert may_hold_fill_values(sizes, float(sizes.max())) or not holds


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_where_all_is_computed_every_element_is(kind: str, dtype: torch.dtype) -> None:
    seen = values(kind).to(dtype)
    if is_all_computed(seen):
        assert bool(seen.isfinite().all())
        assert not bool(is_fill_value(seen).any())
    assert is_all_computed(seen) or kind not in ("plain", "narrow", "flat")
    assert not is_all_computed(seen.index_fill(0, torch.tensor(0), float("nan")))


def test_the_default_dtype_of_the_target_changes_nothing() -> None:
    wanted = values("plain")
    found = wanted + 1e-6
    expected = largest_difference(found, wanted), gap_between(found, wanted)
    before = torch.get_default_dtype()
    forget_scratch()
    try:
        for dtype in (torch.float64, torch.bfloat16):
            torch.set_default_dtype(dtype)
            assert (largest_difference(found, wanted), gap_between(found, wanted)) == expected
            forget_scratch()
    finally:
        torch.set_default_dtype(before)

"""What an output's elements may be off by: rounding always passes, a planted error never does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exportdoctor.worker.prove.allowed_error import allowed_error, allowed_where_computed, is_fill_value
from exportdoctor.worker.prove.compare_outputs import compare_outputs

FILLS = (torch.finfo(torch.float32).min, -1e9, -1e4, float("-inf"))


def logits(seed: int, fill: float) -> torch.Tensor:
    """12 x 16 scores, the last six of each row masked."""
    scores = torch.randn(12, 16, generator=torch.Generator().manual_seed(seed))
    scores[:, 10:] = fill
    return scores


def boxes(seed: int, _: float) -> torch.Tensor:
    """Pixel coordinates up to 4,000 beside a score below one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([torch.rand(30, 4, generator=generator) * 4000, torch.rand(30, 1, generator=generator)], 1)


def causal(seed: int, fill: float) -> torch.Tensor:
    """Scores of 2 heads, masked above the diagonal."""
    scores = torch.randn(2, 9, 9, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(torch.ones(9, 9).triu(1).bool(), fill)


def large_row(seed: int, _: float) -> torch.Tensor:
    """Hidden states of one token are a thousand times those of the others."""
    states = torch.randn(10, 32, generator=torch.Generator().manual_seed(seed))
    states[0] *= 1000
    return states


def holds(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    apart = torch.where(same, 0.0, (found.double() - wanted.double()).abs()).nan_to_num(nan=float("inf"))
    return bool((apart <= allowed_error(wanted)).all())


OUTPUTS = (logits, boxes, causal, large_row)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    shape=st.lists(st.integers(1, 12), min_size=0, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 99),
    spread=st.sampled_from([0.0, 1.0, 3.0, 12.0]),
    special=st.sampled_from([None, 0.0, 1e-6, 5e4, float("inf"), float("nan")]),
)
def test_in_a_few_passes_as_much_is_allowed_as_in_all(
    shape: list[int], dtype: torch.dtype, seed: int, spread: float, special: float | None
) -> None:
    """float64 has no short way: the same values in it are held to the same, fill values apart."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    values = (values * (spread * torch.randn(shape, generator=generator)).exp()).to(dtype)
    if special is not None:
        values.view(-1)[seed % values.numel()] = special
    allowed, computed = allowed_where_computed(values, 1e-3)
    wanted, among = allowed_where_computed(values.to(torch.float64), 1e-3)
    assert torch.equal(computed, among)
    assert torch.equal(allowed[computed], wanted[computed])
    assert torch.equal(computed, values.isfinite() & ~is_fill_value(values))


@pytest.mark.slow
@pytest.mark.parametrize("make", OUTPUTS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_an_error_planted_in_one_computed_element_is_refused(
    make: Callable[[int, float], torch.Tensor], data: st.DataObject
) -> None:
    wanted = make(data.draw(st.integers(0, 99)), data.draw(st.sampled_from(FILLS)))
    computed = (wanted.isfinite() & ~is_fill_value(wanted)).nonzero()
    place = tuple(computed[data.draw(st.integers(0, len(computed) - 1))].tolist())
    size = float(wanted[place].abs())
    found = wanted.clone()
    match data.draw(st.sampled_from(["zero", "sign", "percent", "half", "nan", "inf", "fill"])):
        case "zero":
            found[place] = 0.0 if size > 0.01 else 1.0
        case "sign":
            found[place] = -found[place] if size > 0.01 else 1.0
        case "percent":
            found[place] = found[place] * 1.01 if size > 0.3 else 0.4
        case "half":
            found[place] += 0.5
        case "nan":
            found[place] = float("nan")
        case "inf":
            found[place] = float("inf")
        case "fill":
            found[place] = -1e9
    assert holds(wanted, wanted)
    if make is large_row and place[0] == 0:
        found[place] = wanted[place] + 10.0  # of values around a thousand
    assert not holds(found, wanted)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), fill=st.sampled_from(FILLS))
def test_a_masked_element_that_is_computed_after_all_is_refused(seed: int, fill: float) -> None:
    wanted = logits(seed, fill)
    found = wanted.clone()
    found[seed % 12, 10 + seed % 6] = 0.3
    assert not holds(found, wanted)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 40),
    width=st.integers(1, 300),
    layers=st.integers(1, 6),
    spread=st.sampled_from([1e-3, 0.02, 1.0, 50.0]),
    fill=st.sampled_from((None, *FILLS)),
)
def test_rounding_is_never_refused(
    seed: int, rows: int, width: int, layers: int, spread: float, fill: float | None
) -> None:
    generator = torch.Generator().manual_seed(seed)
    exact = torch.randn(rows, width, generator=generator, dtype=torch.float64) * spread
    rounded = exact.float()
    for _ in range(layers):
        weight = torch.randn(width, width, generator=generator, dtype=torch.float64) / width**0.5
        exact = torch.nn.functional.gelu(exact @ weight) + exact
        rounded = torch.nn.functional.gelu(rounded @ weight.float()) + rounded
    if fill is not None:
        mask = torch.rand(rows, width, generator=generator) < 0.3
        exact, rounded = exact.masked_fill(mask, fill), rounded.masked_fill(mask, fill)
    assert holds(rounded, exact.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_each_dtype_has_its_own_share(dtype: torch.dtype) -> None:
    wanted = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert holds(torch.nextafter(wanted, torch.full_like(wanted, 9.0)) if dtype == torch.float64 else wanted, wanted)
    assert not holds(wanted + wanted.abs().max() * (0.1 if dtype != torch.float64 else 1e-6), wanted)


@pytest.mark.parametrize("special", [None, float("inf")])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_copies_are_held_to_what_one_of_them_is_held_to(dim: int, special: float | None) -> None:
    shape = [9, 9, 9]
    shape[dim] = 1
    one = torch.randn(shape, generator=torch.Generator().manual_seed(dim))
    if special is not None:
        one.view(-1)[7] = special
    assert torch.equal(allowed_error(one.repeat_interleave(20, dim)), allowed_error(one).repeat_interleave(20, dim))


def test_a_logit_near_zero_of_equal_tokens_may_be_off_by_what_its_row_is_off_by() -> None:
    row = torch.linspace(-30, 30, 41)
    wanted = row.expand(2, 9, 41).contiguous()
    wanted[1, 7:] += torch.linspace(-2e-6, 2e-6, 41)  # kernels add in another order at the end
    assert holds(wanted + 1e-3, wanted)
    assert not holds(wanted + 1e-2, wanted)


def test_a_column_that_does_not_vary_hides_no_error_beside_larger_ones() -> None:
    wanted = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)) * 1e5
    wanted[:, 2] = 1.0
    assert not holds(wanted + torch.tensor([0, 0, 1e-2, 0, 0]), wanted)


def test_what_holds_no_elements_or_one_can_be_asked_too() -> None:
    assert allowed_error(torch.empty(0, 3)).shape == (0, 3)
    assert float(allowed_error(torch.tensor(3.0))) == pytest.approx(3e-4, rel=1e-4)
    assert holds(torch.tensor([float("inf"), float("nan")]), torch.tensor([float("inf"), float("nan")]))
    assert not holds(torch.tensor([float("inf"), 1.0]), torch.tensor([float("-inf"), 1.0]))


@pytest.mark.parametrize("fill", FILLS)
def test_a_masked_output_does_not_hide_a_wrong_one(fill: float) -> None:
    wanted = logits(0, fill)
    found = wanted.clone()
    found[3, 2] += 0.47
    row = compare_outputs("a set", [found], [wanted])
    assert not row.holds
    assert row.max_abs == pytest.approx(0.47, rel=1e-3)
    assert row.tolerance < 1e-3
    noise = torch.where(wanted > -100, wanted * (1 + 1e-7), wanted)
    row = compare_outputs("a set", [noise], [wanted])
    assert row.holds
    assert row.max_abs < 1e-6


def test_complex_outputs_may_differ_by_rounding() -> None:
    wanted = torch.complex(torch.randn(4, 4), torch.randn(4, 4))
    assert compare_outputs("a set", [wanted * (1 + 1e-7)], [wanted]).holds
    assert not compare_outputs("a set", [wanted.conj()], [wanted]).holds


def test_a_small_value_among_smaller_ones_may_be_off_by_what_any_may() -> None:
    """The tail of a GELU, of which ONNX Runtime and torch keep other digits, was taken for a fill value."""
    wanted = torch.tensor([1e-9] * 9 + [-3.9e-4, 2e4])
    assert float(allowed_error(wanted)[9]) >= 1e-6
    assert float(allowed_error(wanted)[10]) < 1

"""Numbers, shapes and choices get as small as they can, and no smaller than allowed."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exportdoctor.reduce import Verdict, drive, shrink_choice, shrink_int, shrink_shape
from exportdoctor.reduce.verdict import Reduced

Shape = tuple[int, ...]


def arbitrary(start: object, candidate: object, seed: int) -> Verdict:
    odds = crc32(repr((seed, candidate)).encode()) % 3
    return Verdict.YES if candidate == start or odds == 0 else Verdict.NO


def shrunk(value: int, lower: int, seed: int) -> Reduced[int, int]:
    return drive(shrink_int(value, lower=lower), lambda c: arbitrary(value, c, seed), start=value)


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(0, 50), st.integers())
def test_an_integer_stays_in_bounds_and_its_predecessor_is_not_interesting(value: int, lower: int, seed: int) -> None:
    result = shrunk(value, lower, seed).smallest
    assert result == value or lower <= result < value
    assert arbitrary(value, result, seed) is Verdict.YES
    assert result <= lower or arbitrary(value, result - 1, seed) is not Verdict.YES


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_least_integer_is_found_where_more_is_never_less_interesting(value: int, needed: int) -> None:
    needed = min(value, needed)
    result = drive(shrink_int(value), lambda c: Verdict.YES if c >= needed else Verdict.NO, start=value)
    assert result.answer == needed


def test_a_width_that_the_heads_must_divide_goes_to_the_number_of_heads() -> None:
    result = drive(shrink_int(1280, lower=1), lambda c: Verdict.NO if c % 16 else Verdict.YES, start=1280)
    assert result.answer == 16


def test_the_bound_costs_one_question() -> None:
    result = drive(shrink_int(4096, lower=2), lambda c: Verdict.YES, start=4096)
    assert (result.answer, result.asked) == (2, 2)


def test_a_huge_number_is_no_slower() -> None:
    result = drive(shrink_int(2**61 - 1), lambda c: Verdict.YES if c > 5 else Verdict.NO, start=2**61 - 1)
    assert result.answer == 6
    assert result.asked < 70


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 12), max_size=4).map(tuple), st.integers())
def test_no_size_of_a_shape_can_be_one_less(shape: Shape, seed: int) -> None:
    result = drive(shrink_shape(shape), lambda c: arbitrary(shape, c, seed), start=shape).smallest
    smaller = [(*result[:i], size - 1, *result[i + 1 :]) for i, size in enumerate(result) if size > 1]
    assert all(arbitrary(shape, candidate, seed) is not Verdict.YES for candidate in smaller)
    assert all(1 <= size <= before for size, before in zip(result, shape, strict=True))


def test_equal_sizes_shrink_together() -> None:
    """Batch of the ids, sequence, batch of the mask: the batches must agree and be more than one."""
    shape = (8, 77, 8)

    def ask(candidate: Shape) -> Verdict:
        return Verdict.YES if candidate[0] == candidate[2] > 1 else Verdict.UNKNOWN

    assert drive(shrink_shape(shape), ask, start=shape).answer == (2, 1, 2)


def test_each_size_has_its_own_bound() -> None:
    shape = (9, 9, 9)
    result = drive(shrink_shape(shape, lower=(2, 0, 9)), lambda c: Verdict.YES, start=shape)
    assert result.answer == (2, 0, 9)


def test_bounds_that_do_not_fit_the_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="2 sizes need as many lower bounds, not 1"):
        next(shrink_shape((1, 2), lower=(1,)))


def test_the_simplest_choice_that_is_interesting_is_taken() -> None:
    def chosen(*interesting: str) -> str | None:
        search = shrink_choice("bfloat16", simpler=("float32", "float16"))
        return drive(search, lambda c: Verdict.YES if c in interesting else Verdict.NO, start="bfloat16").answer

    assert chosen("bfloat16") == "bfloat16"
    assert chosen("bfloat16", "float16") == "float16"
    assert chosen("bfloat16", "float16", "float32") == "float32"

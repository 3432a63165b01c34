"""Integers get as small as they can, and no smaller than allowed."""

from __future__ import annotations

from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from exportdoctor.reduce import SearchResult, Verdict, drive
from exportdoctor.reduce.source.passes.constants import shrink_int


def arbitrary(start: object, candidate: object, seed: int) -> Verdict:
    odds = crc32(repr((seed, candidate)).encode()) % 3
    return Verdict.YES if candidate == start or odds == 0 else Verdict.NO


def shrunk(value: int, lower: int, seed: int) -> SearchResult[int, int]:
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

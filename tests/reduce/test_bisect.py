"""Bisection finds where a sequence turns, and says so when it turns more than once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exportdoctor.reduce import Bisected, NotInteresting, Verdict, bisect, drive


def turned(holds: tuple[bool, ...], *, checks: int = 4) -> tuple[Bisected, int]:
    """The answer and the number of questions; the last one holds."""
    result = drive(
        bisect(len(holds), checks=checks),
        lambda index: Verdict.YES if holds[index] else Verdict.NO,
        start=len(holds) - 1,
    )
    assert result.answer is not None
    return result.answer, result.asked


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(1, 5000))
def test_the_first_that_holds_is_found_in_logarithmically_many_questions(below: int, above: int) -> None:
    found, asked = turned((False,) * below + (True,) * above)
    assert (found.first, found.monotone) == (below, True)
    assert asked <= (below + above).bit_length() + 1 + 8


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=24))
def test_the_answer_holds_and_the_one_before_does_not(earlier: list[bool]) -> None:
    holds = (*earlier, True)
    first = turned(holds)[0].first
    assert holds[first]
    assert first == 0 or not holds[first - 1]


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=24))
def test_with_every_index_checked_an_exception_is_told_exactly_when_there_is_one(earlier: list[bool]) -> None:
    holds = (*earlier, True)
    found, asked = turned(holds, checks=len(holds))
    assert asked == len(holds)
    assert found.unchecked == 0
    assert set(found.exceptions) == {i for i, holding in enumerate(holds) if holding != (i >= found.first)}


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(0, 6))
def test_what_was_not_asked_is_counted(count: int, checks: int) -> None:
    found, asked = turned((False,) * (count // 2) + (True,) * (count - count // 2), checks=checks)
    assert found.unchecked == count - asked


def test_a_tower_with_passing_blocks_among_failing_ones_is_reported() -> None:
    """Blocks 7, 15, 23 and 31 of a tower attend fully and pass; the windowed ones and the merger fail."""
    holds = (*((block + 1) % 8 != 0 for block in range(32)), True)
    found, _ = turned(holds, checks=16)
    assert not found.monotone


def test_a_last_index_that_does_not_hold_is_refused() -> None:
    with pytest.raises(NotInteresting):
        drive(bisect(4), lambda index: Verdict.NO, start=3)


def test_nothing_to_bisect_is_refused() -> None:
    with pytest.raises(ValueError, match="empty sequence"):
        next(bisect(0))

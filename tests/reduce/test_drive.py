"""The driver: the same result with one candidate at a time and with several; budgets; steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exportdoctor.reduce import (
    Ended,
    JudgedCandidate,
    NotInteresting,
    ParallelOracle,
    Search,
    SearchLimits,
    SearchResult,
    Verdict,
    ddmin,
    drive,
    lift,
    reduce_source,
    steps,
)
from exportdoctor.reduce.source.passes.constants import shrink_int

SOURCE = """
def scale(x, factor=2):
    y = x * factor
    for i in range(3):
        y = y + i
    return y
print(scale(21), scale(4, 3))
"""
Begun = tuple[Callable[[], Search[Any, Any]], Any]
SEARCHES: dict[str, Begun] = {
    "ddmin": (lambda: ddmin(tuple(range(9))), tuple(range(9))),
    "int": (lambda: shrink_int(360, lower=3), 360),
    "source": (lambda: reduce_source(SOURCE), SOURCE),
}


def drive_in_parallel(
    search: Search[Any, Any],
    submit: Callable[[Any], Future[Verdict]],
    *,
    width: int,
    start: Any,
    limits: SearchLimits[Any],
) -> SearchResult[Any, Any]:
    oracle = ParallelOracle(submit, width=width)
    course = steps(search, oracle, start=start, limits=limits)
    while True:
        try:
            next(course)
        except StopIteration as end:
            oracle.close()
            reduced: SearchResult[Any, Any] = end.value
            return reduced


every_search = pytest.mark.parametrize("name", SEARCHES)


def arbitrary(start: object, seed: int) -> Callable[[object], Verdict]:
    def ask(candidate: object) -> Verdict:
        odds = crc32(repr((seed, candidate)).encode()) % 4
        return Verdict.YES if candidate == start or odds == 0 else (Verdict.NO, Verdict.UNKNOWN)[odds % 2]

    return ask


def answered(verdict: Verdict) -> Future[Verdict]:
    future: Future[Verdict] = Future()
    future.set_result(verdict)
    return future


@every_search
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.integers(1, 5), candidates=st.none() | st.integers(0, 30))
def test_parallel_finds_what_serial_finds(name: str, seed: int, width: int, candidates: int | None) -> None:
    search, start = SEARCHES[name]
    ask, limits = arbitrary(start, seed), SearchLimits[Any](candidates=candidates)
    serial = drive(search(), ask, start=start, limits=limits)
    parallel = drive_in_parallel(search(), lambda c: answered(ask(c)), width=width, start=start, limits=limits)
    assert parallel == serial


@every_search
@given(seed=st.integers(0, 10**6), candidates=st.integers(1, 30))
@settings(max_examples=15, deadline=None)
def test_a_budget_leaves_the_best_so_far(name: str, seed: int, candidates: int) -> None:
    search, start = SEARCHES[name]
    ask = arbitrary(start, seed)
    result = drive(search(), ask, start=start, limits=SearchLimits(candidates=candidates))
    assert result.asked <= candidates
    assert ask(result.smallest) is Verdict.YES
    assert result.ended is (Ended.CANDIDATES if result.answer is None else Ended.FINISHED)


@every_search
@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_the_closest_candidate_passes(name: str, seed: int) -> None:
    search, start = SEARCHES[name]
    ask = arbitrary(start, seed)
    closest = drive(search(), ask, start=start).closest
    assert closest is None or ask(closest) is Verdict.NO


def test_threads_that_answer_out_of_order_change_nothing() -> None:
    start, ticks = tuple(range(12)), count()

    def ask(candidate: tuple[int, ...]) -> Verdict:
        time.sleep((next(ticks) % 3) / 1000)
        return Verdict.YES if {2, 7, 8} <= set(candidate) else Verdict.NO

    with ThreadPoolExecutor(4) as pool:
        parallel = drive_in_parallel(
            ddmin(start), lambda c: pool.submit(ask, c), width=4, start=start, limits=SearchLimits()
        )
    assert parallel == drive(ddmin(start), ask, start=start)


class Pending(Future[Verdict]):
    """A future that is not answered before somebody waits for it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__()
        self.verdict = verdict

    def result(self, timeout: float | None = None) -> Verdict:
        self.set_result(self.verdict)
        return super().result(timeout)


def test_at_most_width_candidates_are_in_flight_and_unwanted_ones_are_cancelled() -> None:
    futures: dict[int, Pending] = {}

    def submit(candidate: int) -> Future[Verdict]:
        assert sum(not future.done() for future in futures.values()) < 3
        futures[candidate] = Pending(Verdict.YES if candidate == 4 or candidate > 8 else Verdict.NO)
        return futures[candidate]

    result = drive_in_parallel(one_batch(1, 2, 3, 4, 5, 6, 7), submit, width=3, start=9, limits=SearchLimits())
    assert (result.smallest, result.answer, result.asked) == (4, 3, 5)
    assert [candidate for candidate, future in futures.items() if future.cancelled()] == [5, 6]
    assert 7 not in futures


def one_batch(*batch: Any) -> Search[Any, int | None]:
    return (yield batch)


def test_a_width_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        ParallelOracle(lambda c: answered(Verdict.YES), width=0)


def test_a_start_that_is_not_interesting_is_refused() -> None:
    with pytest.raises(NotInteresting, match="'unknown'") as refused:
        drive(ddmin((1, 2)), lambda c: Verdict.UNKNOWN, start=(1, 2))
    assert refused.value.start == (1, 2)


def test_stopping_leaves_the_best_so_far() -> None:
    start = tuple(range(16))
    asked: list[tuple[int, ...]] = []

    def ask(candidate: tuple[int, ...]) -> Verdict:
        asked.append(candidate)
        return Verdict.YES if 3 in candidate else Verdict.NO

    result = drive(ddmin(start), ask, start=start, limits=SearchLimits(should_stop=lambda: len(asked) == 4))
    assert (result.ended, result.asked, result.smallest) == (Ended.STOPPED, 4, (0, 1, 2, 3))
    assert result.answer is None


def test_steps_show_each_needed_candidate_in_order_and_which_was_accepted() -> None:
    start = (1, 2, 3)
    shown = list(steps(ddmin(start), lambda c, ahead: Verdict.YES if 1 in c else Verdict.NO, start=start))
    assert shown == [
        JudgedCandidate((1, 2, 3), Verdict.YES, accepted=True, asked=1),
        JudgedCandidate((), Verdict.NO, accepted=False, asked=2),
        JudgedCandidate((1,), Verdict.YES, accepted=True, asked=3),
        JudgedCandidate((), Verdict.NO, accepted=False, asked=3),
        JudgedCandidate((), Verdict.NO, accepted=False, asked=3),
    ]


def test_a_candidate_that_cannot_be_embedded_counts_as_not_interesting() -> None:
    search = lift(one_batch(1, 2, 3), lambda number: None if number == 2 else str(number))
    result = drive(search, lambda text: Verdict.NO if text == "1" else Verdict.YES, start="5555")
    assert (result.smallest, result.answer, result.asked) == ("3", 2, 3)


def test_errors_of_whoever_is_asked_are_not_swallowed() -> None:
    def broken(candidate: object) -> Verdict:
        raise OSError("the worker is gone")

    with pytest.raises(OSError, match="gone"):
        drive(ddmin((1,)), broken, start=(1,))

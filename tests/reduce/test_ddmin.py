"""ddmin, for any predicate: a subset in order, interesting, 1-minimal, always the same, in few questions."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from exportdoctor.reduce import SearchLimits, SearchResult, Verdict, ddmin, drive

Items = tuple[int, ...]
Ask = Callable[[Items], Verdict]
counts = st.integers(0, 14)


def arbitrary(start: Items, seed: int) -> Ask:
    """Any answer for any candidate, `unknown` and non-monotone ones included; the start is interesting."""

    def ask(candidate: Items) -> Verdict:
        if candidate == start:
            return Verdict.YES
        return (Verdict.YES, Verdict.NO, Verdict.UNKNOWN)[crc32(repr((seed, candidate)).encode()) % 3]

    return ask


def needing(needed: frozenset[int]) -> Ask:
    return lambda candidate: Verdict.YES if needed <= set(candidate) else Verdict.NO


def minimised(start: Items, ask: Ask) -> SearchResult[Items, Items]:
    return drive(ddmin(start), ask, start=start)


def without_each(items: Items) -> list[Items]:
    return [items[:place] + items[place + 1 :] for place in range(len(items))]


@settings(deadline=None)
@given(counts, st.integers())
def test_the_result_is_a_subset_in_order_and_interesting(count: int, seed: int) -> None:
    start = tuple(range(count))
    ask = arbitrary(start, seed)
    result = minimised(start, ask).smallest
    assert list(result) == sorted(set(result) & set(start))
    assert ask(result) is Verdict.YES


@settings(deadline=None)
@given(counts, st.integers())
def test_no_single_item_of_the_result_can_go(count: int, seed: int) -> None:
    start = tuple(range(count))
    ask = arbitrary(start, seed)
    result = minimised(start, ask).smallest
    assert all(ask(smaller) is not Verdict.YES for smaller in without_each(result))


@settings(deadline=None)
@given(counts, st.integers())
def test_it_asks_at_most_n_squared_and_3n_beyond_its_start_and_nothing_twice(count: int, seed: int) -> None:
    start = tuple(range(count))
    asked: list[Items] = []
    ask = arbitrary(start, seed)

    def counting(candidate: Items) -> Verdict:
        asked.append(candidate)
        return ask(candidate)

    result = minimised(start, counting)
    assert len(set(asked)) == len(asked) == result.asked
    assert result.asked - 1 <= count**2 + 3 * count


@settings(deadline=None)
@given(st.integers(1, 40))
def test_the_worst_predicate_stays_within_the_bound(count: int) -> None:
    """Only the first item can be removed, then the next: each sweep gets one item further."""
    start = tuple(range(count))
    tails = {start[place:] for place in range(count + 1)}
    result = minimised(start, lambda c: Verdict.YES if c in tails and c else Verdict.NO)
    assert len(result.smallest) == 1
    assert result.asked - 1 <= count**2 + 3 * count


@settings(deadline=None)
@given(st.integers(1, 60), st.data())
def test_exactly_what_is_needed_remains(count: int, data: st.DataObject) -> None:
    start = tuple(range(count))
    needed = data.draw(st.frozensets(st.sampled_from(start)))
    assert minimised(start, needing(needed)).smallest == tuple(sorted(needed))


@settings(deadline=None)
@given(counts, st.integers())
def test_it_finds_the_same_each_time(count: int, seed: int) -> None:
    start = tuple(range(count))
    ask = arbitrary(start, seed)
    assert minimised(start, ask) == minimised(start, ask)


def test_one_needed_item_of_a_thousand_costs_few_questions() -> None:
    start = tuple(range(1000))
    assert minimised(start, needing(frozenset({617}))).asked < 60


def test_of_two_items_that_each_suffice_the_earlier_remains() -> None:
    start = ("exact", "other", "opaque")
    enough = {"exact", "opaque"}
    result = drive(ddmin(start), lambda c: Verdict.YES if enough & set(c) else Verdict.NO, start=start)
    assert result.smallest == ("exact",)


def test_equal_items_can_remain_together() -> None:
    start = ("a", "b", "a", "a")
    result = drive(ddmin(start), lambda c: Verdict.YES if c.count("a") >= 2 else Verdict.NO, start=start)
    assert result.smallest == ("a", "a")


def test_unknown_is_no_reason_to_remove_and_never_the_closest_passing() -> None:
    start = (1, 2, 3)
    verdicts = {start: Verdict.YES, (1, 2): Verdict.YES, (1,): Verdict.NO, (2,): Verdict.UNKNOWN}
    result = drive(ddmin(start), lambda c: verdicts.get(c, Verdict.UNKNOWN), start=start, limits=SearchLimits())
    assert (result.smallest, result.closest) == ((1, 2), (1,))

"""Minimal sets: each is minimal, none contains another, and with room for all of them all are found."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from exportdoctor.reduce import Verdict, drive, minimal_sets, minimise_set

Family = frozenset[frozenset[int]]
ITEMS = tuple(range(6))
families = st.frozensets(st.frozensets(st.sampled_from(ITEMS), min_size=1, max_size=3), min_size=1, max_size=4)


def containing_one_of(family: Family, candidate: tuple[int, ...]) -> Verdict:
    return Verdict.YES if any(members <= set(candidate) for members in family) else Verdict.NO


def found(family: Family, limit: int) -> tuple[frozenset[int], ...]:
    search = minimal_sets(ITEMS, limit=limit)
    result = drive(search, lambda c: containing_one_of(family, c), start=ITEMS)
    return tuple(map(frozenset, result.answer or ()))


@settings(deadline=None)
@given(families)
def test_all_minimal_sets_are_found_once(family: Family) -> None:
    minimal = {members for members in family if not any(other < members for other in family)}
    sets = found(family, limit=20)
    assert len(sets) == len(set(sets))
    assert set(sets) == minimal


@settings(deadline=None)
@given(families, st.integers(1, 3))
def test_no_more_than_the_limit_are_looked_for_and_the_preferred_comes_first(family: Family, limit: int) -> None:
    sets = found(family, limit)
    first = drive(minimise_set(ITEMS), lambda c: containing_one_of(family, c), start=ITEMS).answer
    assert len(sets) <= limit
    assert first is not None
    assert sets[0] == frozenset(first)


def test_two_shims_that_cure_the_same_are_both_told() -> None:
    shims = ("geometry_outside", "eager_mask", "mask_without_vmap")

    def exports(candidate: tuple[str, ...]) -> Verdict:
        return Verdict.YES if "geometry_outside" in candidate and len(candidate) > 1 else Verdict.NO

    result = drive(minimal_sets(shims), exports, start=shims)
    assert result.answer == (("geometry_outside", "eager_mask"), ("geometry_outside", "mask_without_vmap"))

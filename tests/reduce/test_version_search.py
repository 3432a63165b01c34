"""What a bisection says was seen, whatever the versions answer; where it can be known, it is right."""

from __future__ import annotations

from math import log2
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.reduce import Verdict
from exportdoctor.reduce.difference_search import find_differences
from exportdoctor.reduce.version_search import find_turn

YES, NO, UNKNOWN = Verdict.YES, Verdict.NO, Verdict.UNKNOWN
verdicts = st.sampled_from([YES, NO, UNKNOWN])


@given(st.integers(1, 40), st.integers(0, 41), st.booleans(), st.sets(st.integers(0, 39)))
def test_one_turn_is_found_and_unknown_versions_are_stepped_around(
    count: int, turn: int, fails_first: bool, unknown: set[int]
) -> None:
    world = [UNKNOWN if i in unknown else YES if (i < turn) is fails_first else NO for i in range(count)]
    asked: list[int] = []

    def ask(index: int, again: bool) -> Verdict:
        assert again == (index in asked)
        asked.append(index)
        return world[index]

    found = find_turn(count, ask)
    known = [i for i in range(count) if i not in unknown]
    early, late = [i for i in known if i < turn], [i for i in known if i >= turn]
    assert not found.flaky
    if not early or not late:
        assert found.turn is None
        assert all(end in known for end in found.ends)
        assert bool(found.ends) == bool(known)
        return
    assert found.turn is not None
    assert (found.turn.before, found.turn.after) == (early[-1], late[0])
    assert found.turn.fails_before is fails_first
    if not unknown & set(range(count)):
        assert len(asked) <= log2(count) + 7


@given(st.lists(st.tuples(verdicts, verdicts), min_size=1, max_size=30))
def test_whatever_versions_answer_only_what_was_seen_twice_is_told(world: list[tuple[Verdict, Verdict]]) -> None:
    said: dict[int, list[Verdict]] = {}

    def ask(index: int, again: bool) -> Verdict:
        said.setdefault(index, []).append(world[index][again])
        return said[index][-1]

    found = find_turn(len(world), ask)
    assert all(len(answers) <= 2 for answers in said.values())
    assert found.flaky == {i for i, answers in said.items() if len(set(answers)) == 2}
    ends = [*found.ends, *((found.turn.before, found.turn.after) if found.turn else ())]
    assert all(said[i] in ([YES, YES], [NO, NO]) for i in ends)
    if found.turn is not None:
        low, high = found.turn.before, found.turn.after
        assert found.ends[0] <= low < high <= found.ends[1]
        assert said[low][0] is not said[high][0]
        assert (said[low][0] is YES) is found.turn.fails_before
        assert all(said[i][0] is UNKNOWN or i in found.flaky for i in range(low + 1, high))


cores = st.lists(st.sets(st.integers(0, 6), min_size=1, max_size=3), min_size=1, max_size=3)


@given(cores, st.sampled_from([0, 12]), st.integers(), st.sampled_from([0.0, 0.4]))
def test_what_is_told_to_make_a_failure_makes_it_and_nothing_less_is_known_to(
    cores: list[set[int]], one_by_one: int, seed: int, share: float
) -> None:
    """A world in which a failure needs all of any core, and of some of the subsets nothing is known."""
    items, seen = tuple(range(7)), dict[tuple[int, ...], Verdict]()
    chance = Random(seed)

    def ask(subset: tuple[int, ...]) -> Verdict:
        assert subset not in seen
        fails = any(core <= set(subset) for core in cores)
        seen[subset] = UNKNOWN if 0 < len(subset) < 7 and chance.random() < share else YES if fails else NO
        return seen[subset]

    found = find_differences(items, ask, one_by_one=one_by_one)
    assert bool(found.alone) != bool(found.together)
    assert all(seen[(item,)] is YES for item in found.alone)
    if found.together:
        assert seen[found.together] is YES
        assert not any(seen.get((item,)) is YES for item in found.together)
        less = [tuple(i for i in found.together if i != item) for item in found.together]
        assert all(seen[subset] is not YES for subset in less)
        assert all(seen[subset] is UNKNOWN for subset in found.unknown)
    if not share:
        assert not found.unknown
        assert set(found.together or found.alone[:1]) in [set(core) for core in cores]
        if one_by_one:
            assert set(found.alone) == {next(iter(core)) for core in cores if len(core) == 1}

"""The search for a cure: the smallest set, the soundest first, and its alternatives."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cure_situations import (
    RIGHT,
    ROOT,
    SMALL,
    WRONG,
    failing,
    failing_part,
    run_search,
    shim,
    situations,
    situations_at_odds,
    situations_with_broad_shims,
)
from exportdoctor.core.failure.finding import ShimTry
from exportdoctor.core.records.outcome import Agreement, Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.report.wording.shim_tries import shim_effect
from exportdoctor.shims import SOUNDNESS, Shim

SEARCHED_ON = ((False, True), (True, False), (True, True))
"""Whether there is a small model, and whether the part itself has values."""


@given(situations(), st.sampled_from(SEARCHED_ON))
def test_what_is_prescribed_cures_has_nothing_to_spare_and_is_as_sound_as_can_be(
    situation: tuple[int, tuple[Shim, ...], dict[str, int]], on: tuple[bool, bool]
) -> None:
    failures, shims, cures = situation
    answer = failing_part(failures, cures)
    found = run_search(answer, shims, small=on[0], values=on[1]).prescription
    sound = {one.id: SOUNDNESS.index(one.soundness) for one in shims if one.soundness != "unsound"}
    best = [min((sound[n] for n, at in cures.items() if at == k and n in sound), default=None) for k in range(1, 5)]
    curable = all(best[nth] is not None for nth in range(failures))
    assert (found is not None) == curable
    if found is None:
        return
    asked = Probe(part="full", fqn="", to="run")
    assert answer(_with(asked, found.shims)).passed
    assert not any(answer(_with(asked, tuple(n for n in found.shims if n != left))).passed for left in found.shims)
    assert set(found.shims) <= sound.keys()
    assert SOUNDNESS.index(found.soundness) == max(best[nth] or 0 for nth in range(failures))  # type: ignore[arg-type]


def _with(probe: Probe, shims: tuple[str, ...]) -> Probe:
    return Probe(part=probe.part, fqn="", to=probe.to, shims=shims)


@pytest.mark.slow
@given(situations_at_odds(), st.booleans())
def test_where_two_shims_are_at_odds_another_way_to_the_same_failure_is_taken(
    situation: tuple[int, tuple[Shim, ...], dict[str, int], frozenset[frozenset[str]]], refuses: bool
) -> None:
    """Two shims give a wrong program together, or one of them does not apply to what the other one changes."""
    failures, shims, cures, odds = situation

    def are_at_odds(given: Iterable[str]) -> bool:
        return any(pair <= frozenset(given) for pair in odds)

    plain = failing_part(failures, cures, numbers=lambda given: WRONG if are_at_odds(given) else RIGHT)
    not_applicable = Outcome(probe="", status=OutcomeStatus.NOT_APPLICABLE, note="what it changes is not there")

    def answer(probe: Probe) -> Outcome:
        return not_applicable if refuses and are_at_odds(probe.shims) else plain(probe)

    found = run_search(answer, shims).prescription
    rank = {one.id: SOUNDNESS.index(one.soundness) for one in shims}
    choices = itertools.product(*([n for n, at in cures.items() if at == nth] for nth in range(1, failures + 1)))
    ranks = [max(map(rank.__getitem__, one)) for one in choices if not any(pair <= set(one) for pair in odds)]
    assert (SOUNDNESS.index(found.soundness) if found is not None else None) == min(ranks, default=None)


@pytest.mark.slow
@given(situations_with_broad_shims(), st.sampled_from(SEARCHED_ON))
def test_a_set_of_shims_that_cure_several_failures_is_found_wherever_there_is_one(
    situation: tuple[int, tuple[Shim, ...], dict[str, frozenset[int]]], on: tuple[bool, bool]
) -> None:
    failures, shims, cures = situation
    found = run_search(failing_part(failures, cures), shims, small=on[0], values=on[1]).prescription
    assert (SOUNDNESS.index(found.soundness) if found is not None else None) == best_rank(failures, shims, cures)


def best_rank(
    failures: int, shims: tuple[Shim, ...], cures: dict[str, frozenset[int]], liars: frozenset[str] = frozenset()
) -> int | None:
    """The soundness of the soundest set that may be prescribed and cures all; None where no set does."""
    rank = {
        one.id: SOUNDNESS.index(one.soundness) for one in shims if one.soundness != "unsound" and one.id not in liars
    }
    least = [min((rank[n] for n in rank if nth in cures[n]), default=None) for nth in range(1, failures + 1)]
    return None if None in least else max(one for one in least if one is not None)


@pytest.mark.slow
@given(situations_with_broad_shims(), st.sampled_from(SEARCHED_ON))
def test_an_alternative_cures_and_is_neither_sounder_nor_smaller_nor_the_prescription_with_more(
    situation: tuple[int, tuple[Shim, ...], dict[str, frozenset[int]]], on: tuple[bool, bool]
) -> None:
    failures, shims, cures = situation
    answer = failing_part(failures, cures)
    search = run_search(answer, shims, small=on[0], values=on[1])
    found = search.prescription
    assert (found is not None) == (best_rank(failures, shims, cures) is not None)
    if found is None:
        return
    best = SOUNDNESS.index(found.soundness), len(found.shims)
    ranks = [best]
    asked = Probe(part="full", fqn="", to="run")
    for other in found.alternatives:
        assert answer(_with(asked, other.shims)).passed
        assert not any(answer(_with(asked, tuple(n for n in other.shims if n != left))).passed for left in other.shims)
        assert not set(found.shims) <= set(other.shims)
        assert not set(other.shims) <= set(found.shims)
        assert (other.proof is None) != (other.compared is None)
        assert (other.proof or other.compared).inputs_tried == len(RIGHT if other.proof else RIGHT[:1])  # type: ignore[union-attr]
        ranks.append((SOUNDNESS.index(other.soundness), len(other.shims)))
    assert ranks == sorted(ranks)
    assert len({frozenset(found.shims), *(frozenset(other.shims) for other in found.alternatives)}) == len(ranks)


@pytest.mark.slow
@given(situations_with_broad_shims(), st.frozensets(st.sampled_from([f"s{n}" for n in range(8)])))
def test_what_agrees_on_the_known_sets_alone_is_neither_prescribed_nor_called_proved(
    situation: tuple[int, tuple[Shim, ...], dict[str, frozenset[int]]], liars: frozenset[str]
) -> None:
    failures, shims, cures = situation
    answer = failing_part(failures, cures, lambda names: WRONG if names & liars else RIGHT)
    found = run_search(answer, shims).prescription
    assert (SOUNDNESS.index(found.soundness) if found is not None else None) == best_rank(failures, shims, cures, liars)
    if found is not None:
        assert not liars & set(found.shims)
        assert found.proof is not None
        assert found.proof.inputs_tried == len(RIGHT)
        assert not any(liars & set(other.shims) for other in found.alternatives if other.proof is not None)


def test_an_alternative_that_would_not_be_prescribed_is_compared_on_the_known_sets_only() -> None:
    shims = (shim("a", 1), shim("b", 1, soundness="signature"))
    found = run_search(failing_part(1, {"a": 1, "b": 1}), shims).prescription
    assert found is not None
    (other,) = found.alternatives
    assert (other.shims, other.proof) == (("b",), None)
    assert other.compared is not None
    assert other.compared.inputs_tried == 1


def test_the_first_sets_beyond_the_cure_are_asked_side_by_side() -> None:
    others = shim("other-a", 1, soundness="signature"), shim("other-b", 2, soundness="signature")
    cures = {"a": 1, "b": 2, "other-a": 1, "other-b": 2}
    together: list[set[frozenset[str]]] = []
    run_search(
        failing_part(2, cures),
        (shim("a", 1), shim("b", 2), *others),
        see=lambda waiting: together.append({frozenset(probe.shims) for probe in waiting}),
    )
    assert any({frozenset({"a", "other-b"}), frozenset({"other-a", "b"})} <= sets for sets in together)


def test_alternatives_come_from_exchanging_a_shim_and_are_ranked_by_soundness_then_size() -> None:
    shims = (
        shim("a", 1),
        shim("b", 2),
        shim("other-b", 2, soundness="signature"),
        shim("both", 1, 2, soundness="signature"),
    )
    cures = {name: frozenset(d) for name, d in {"a": {1}, "b": {2}, "other-b": {2}, "both": {1, 2}}.items()}
    found = run_search(failing_part(2, cures), shims).prescription
    assert found is not None
    assert found.shims == ("a", "b")
    assert [(other.shims, other.why) for other in found.alternatives] == [
        (("both",), "less sound"),
        (("other-b", "a"), "less sound"),
    ]


def test_a_shim_is_no_alternative_to_itself_for_one_function() -> None:
    cures = {"a": frozenset({1}), "a:f": frozenset({1}), "b": frozenset({1})}
    for soundness, others in (("signature", ["b"]), ("specialised", ["a:f", "b"])):
        shims = (
            shim("a", 1, soundness=soundness),
            shim("a:f", 1, soundness=soundness),
            shim("b", 1, soundness=soundness),
        )
        found = run_search(failing_part(1, cures), shims).prescription
        assert found is not None
        assert found.shims == ("a",)
        assert [other.shims for other in found.alternatives] == [(name,) for name in others]


@pytest.mark.parametrize(("idle_ones", "many"), [("refused", 3), ("as before", 1), ("another failure", 1)])
def test_a_shim_that_cures_nothing_does_not_take_the_turn_of_what_stands_behind_it(idle_ones: str, many: int) -> None:
    """Two sets are tried beyond the cure: one for either shim, though three shims for the first do not apply, or one
    does not cure: it leaves the failure as it was, or leads to another one."""
    idle = tuple(shim(f"n{nth}", 1) for nth in range(many))
    shims = (shim("a", 1), shim("b", 2), *idle, shim("other-a", 1, soundness="signature"), shim("c", 2), shim("d", 2))
    cured = failing_part(2, {"a": 1, "b": 2, "other-a": 1})
    refused = Outcome(probe="", status=OutcomeStatus.NOT_APPLICABLE, note="nothing to change")
    others = {"refused": refused, "another failure": failing(3)}
    found = run_search(
        lambda probe: others.get(idle_ones, cured(probe)) if {"n0", "n1", "n2"} & {*probe.shims} else cured(probe),
        shims,
    ).prescription
    assert found is not None
    assert found.shims == ("a", "b")
    assert ("b", "other-a") in [tuple(sorted(other.shims)) for other in found.alternatives]


def test_one_shim_that_does_the_work_of_two_is_prescribed_though_the_two_were_found_first() -> None:
    shims = (shim("a", 1), shim("b", 2), shim("z-both", 1, 2))
    cures = {"a": frozenset({1}), "b": frozenset({2}), "z-both": frozenset({1, 2})}
    found = run_search(failing_part(2, cures), shims).prescription
    assert found is not None
    assert found.shims == ("z-both",)
    assert [(other.shims, other.why) for other in found.alternatives] == [
        (("a", "b"), "equally sound, but needs 2 shims")
    ]


@given(st.permutations(["a", "z-both"]))
def test_a_set_is_not_reduced_to_one_that_refuses_more(names: list[str]) -> None:
    """It was: an assertion for each branch in place of a choice for one of them and an assertion for the other."""
    ends = {"a": (1,), "z-both": (1, 2)}
    weak = partial(shim, soundness="precondition")
    shims = tuple((shim if one == "a" else weak)(one, *ends[one]) for one in names)
    cures = {one: frozenset(ends[one]) for one in ends}
    refused = Agreement(inputs="4 x 3, other x", trouble="AssertionError", refused=True, made_up=True)
    answer = failing_part(2, cures, numbers=lambda given: RIGHT if "a" in given else (*RIGHT, refused))
    found = run_search(answer, shims).prescription
    assert found is not None
    assert found.shims == ("a", "z-both")


def test_a_set_that_cured_on_the_way_and_was_passed_over_is_an_alternative() -> None:
    """It was said to work, and neither prescribed nor offered: no file of its program can be written."""
    unwritten = tuple(
        msgspec.structs.replace(row, note="a file of the program cannot be written or loaded") for row in RIGHT
    )
    cures = {"a": frozenset({1}), "b": frozenset({1})}
    answer = failing_part(1, cures, numbers=lambda given: unwritten if "a" in given else RIGHT)
    found = run_search(answer, (shim("a", 1), shim("b", 1, soundness="precondition"))).prescription
    assert found is not None
    assert found.shims == ("b",)
    assert [other.shims for other in found.alternatives] == [("a",)]


def test_one_shim_that_moves_out_what_two_would_is_tried_before_the_two() -> None:
    """Where the second failure is one of those that it may cure, too; the third is met behind it alone."""
    moves = partial(shim, soundness="signature")
    shims = (moves("a", 1), moves("b", 2), moves("z-both", 1, 2), shim("c", 3))
    cures = {"a": frozenset({1}), "b": frozenset({2}), "z-both": frozenset({1, 2}), "c": frozenset({3})}
    search = run_search(failing_part(3, cures), shims, alternatives=False)
    assert [trial.shims for trial in search.trials] == [("a",), ("z-both",), ("z-both", "c")]
    assert search.prescription is not None
    assert search.prescription.shims == ("z-both", "c")


def test_a_shim_that_was_there_when_a_failure_occurred_is_not_tried_for_it_before_others() -> None:
    moves = partial(shim, soundness="signature")
    shims = (moves("a", 1), moves("b", 1, 2), moves("c", 2))
    search = run_search(failing_part(2, {"a": 1, "b": 1, "c": 2}), shims, alternatives=False)
    assert [trial.shims for trial in search.trials] == [("a",), ("b",), ("a", "c")]


def test_what_is_in_vain_in_all_functions_is_not_tried_in_one_before_others() -> None:
    shims = (
        shim("a", 1, soundness="signature"),
        shim("a:f", 1, soundness="signature"),
        shim("b", 1, soundness="precondition"),
    )
    search = run_search(failing_part(1, {"b": 1}), shims, alternatives=False)
    assert [trial.shims for trial in search.trials] == [("a",), ("b",)]


def test_what_confirms_a_set_that_leads_beyond_two_failures_is_begun_beside_its_try() -> None:
    """Where it cures the small model, the part itself has its answer sooner; where it does not, that is given up."""
    shims = (shim("a", 1), shim("idle", 2), shim("b", 2))
    ahead: list[tuple[tuple[str, tuple[str, ...]], ...]] = []
    run_search(
        failing_part(2, {"a": 1, "b": 2}),
        shims,
        small=True,
        values=False,
        alternatives=False,
        look=lambda named: ahead.append(tuple((one.part, one.shims) for one in named.probes)),
    )
    both = ("a", "b")
    assert not any(part == ROOT.part for part, _ in ahead[0])
    assert ((SMALL.part, both), (ROOT.part, both)) in [named[:2] for named in ahead]
    assert ((ROOT.part, both),) in ahead
    assert ahead[-1] == ()


def test_what_would_confirm_a_smaller_set_is_given_up_where_that_set_does_not_cure() -> None:
    """The alternative z + b holds a shim that fits both failures; z alone was tried before, and cures one only."""
    shims = (shim("a", 1), shim("z", 1, 2), shim("b", 2))
    met: list[Any] = []
    search = run_search(
        failing_part(2, {"a": 1, "z": 1, "b": 2}),
        shims,
        small=True,
        values=False,
        see=lambda waiting: met.append("an answer is awaited"),
        look=lambda named: met.append(tuple((one.part, one.shims) for one in named.probes)),
    )
    assert [set(cured.shims) for cured in search.cures] == [{"a", "b"}, {"b", "z"}]
    named = met.index(((SMALL.part, ("z",)), (ROOT.part, ("z",))))
    assert met[named + 1] == ()


def test_no_alternative_is_sought_where_no_numbers_can_be_compared() -> None:
    search = run_search(failing_part(1, {"a": 1, "b": 1}), (shim("a", 1), shim("b", 1)), values=False)
    assert search.prescription is not None
    assert [trial.shims for trial in search.trials] == [("a",)]


@pytest.mark.parametrize(("first", "others"), [("exact", 0), ("precondition", 0), ("specialised", 1)])
def test_without_alternatives_others_are_sought_only_beside_what_is_not_sound(first: str, others: int) -> None:
    shims = (shim("a", 1, soundness=first), shim("b", 1, soundness="opaque"))
    search = run_search(failing_part(1, {"a": 1, "b": 1}), shims, alternatives=False)
    assert search.prescription is not None
    assert search.prescription.shims == ("a",)
    assert len(search.prescription.alternatives) == others


def test_a_failure_that_comes_earlier_is_not_followed() -> None:
    """A shim that breaks the call itself moves the failure, to where less was traced."""

    def answer(probe: Probe) -> Outcome:
        return failing(1) if "breaks" in probe.shims else failing(2)

    search = run_search(answer, (shim("breaks", 2), shim("follows", 1)))
    assert [(trial.shims, trial.result) for trial in search.trials] == [(("breaks",), "error")]


def test_where_no_attempt_could_be_made_nothing_is_said_of_the_shims() -> None:
    def answer(probe: Probe) -> Outcome:
        lost = Outcome(probe="", status=OutcomeStatus.NO_DEVICE, note="the card is taken")
        return lost if probe.shims else failing(1)

    search = run_search(answer, (shim("a", 1), shim("b", 1)))
    assert (search.prescription, search.note) == (None, "no shim could be tried: the card is taken")


def test_a_fault_of_exportdoctor_is_no_fault_of_a_shim() -> None:
    def answer(probe: Probe) -> Outcome:
        if probe.shims == ("a",):
            return Outcome(probe="", status=OutcomeStatus.OWN_FAULT, note="KeyError in held_state.py")
        return failing_part(1, {"b": 1})(probe)

    search = run_search(answer, (shim("a", 1), shim("b", 1)))
    assert search.prescription is not None
    tried = next(trial for trial in search.trials if trial.shims == ("a",))
    told = shim_effect(ShimTry(shim="a", result=tried.result, note=tried.note))
    assert told == "could not be tried"


@pytest.mark.parametrize(
    ("first", "hidden"),
    [("exact", [2]), ("signature", [2]), ("precondition", [2]), ("specialised", []), ("opaque", [2])],
)
def test_a_failure_that_only_a_fixed_value_shows_is_none_of_the_model(first: str, hidden: list[int]) -> None:
    shims = (shim("first", 1, soundness=first), shim("second", 2))
    search = run_search(failing_part(2, {"first": 1, "second": 2}), shims)
    assert search.prescription is not None
    assert [one.failure.frames[0].line for one in search.hidden_failures() if one.failure] == hidden


def test_a_failure_that_another_shim_shows_as_well_is_one_of_the_model() -> None:
    shims = (shim("exact", 1), shim("fixed", 1, soundness="specialised"))
    search = run_search(failing_part(2, {"exact": 1, "fixed": 1}), shims)
    assert search.prescription is None
    assert {one.failure.frames[0].line for one in search.hidden_failures() if one.failure} == {2}


def test_a_failure_behind_what_cures_is_told_though_another_shim_had_led_to_it() -> None:
    shims = (shim("tried-before", 1), shim("other-way", 1, soundness="signature"), shim("last", 2))

    def answer(probe: Probe) -> Outcome:
        if not {"tried-before", "other-way"} & {*probe.shims}:
            return failing(1)
        if "last" not in probe.shims:
            return failing(2)
        if "other-way" not in probe.shims:
            return Outcome(probe="", status=OutcomeStatus.FAILED, numbers=WRONG)
        return Outcome(probe="", status=OutcomeStatus.PASSED, numbers=RIGHT)

    search = run_search(answer, shims)
    assert search.prescription is not None
    assert set(search.prescription.shims) == {"other-way", "last"}
    assert {one.failure.frames[0].line for one in search.hidden_failures() if one.failure} == {2}

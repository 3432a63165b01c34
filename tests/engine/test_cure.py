"""The search for a cure: the smallest set, the soundest first, and never one whose program differs from eager."""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from exportdoctor.cli.main import run as command_line
from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.finding import ShimTry
from exportdoctor.core.records.outcome import Agreement, ExceptionFact, Failure, Frame, Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run.report import FAILING
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.cure.prescription import proof_of_rows
from exportdoctor.engine.cure.search import CureSearch
from exportdoctor.engine.cure.try_shims import try_shims
from exportdoctor.engine.probe_driver import Lookahead, ProbeDriver, Request
from exportdoctor.report import wording
from exportdoctor.report.wording.shim_tries import ON_SMALL_MODEL, PART_ITSELF, shim_effect
from exportdoctor.shims import SOUNDNESS, Cure, ExportCall, Shim, apply_shims, export_program, find
from exportdoctor.store.runs import read_run
from exportdoctor.worker.attempt.fixed_axes import find_fixed_axes
from exportdoctor.worker.translate.onnx_session import OnnxSession
from scanning import scan_file

ROOT, TWIN = Probe(part="full", fqn=""), Probe(part="full~twin", fqn="")
RIGHT = (Agreement(inputs="2 x 3", max_abs=1e-7, tolerance=1e-4), Agreement(inputs="4 x 3", tolerance=1e-4))
WRONG = (RIGHT[0], Agreement(inputs="4 x 3", max_abs=3.0, tolerance=1e-4))
REFUSED = (RIGHT[0], Agreement(inputs="4 x 3", trouble="AssertionError: Guard failed", refused=True))

SOUND = tuple(kind for kind in SOUNDNESS if kind != "specialised")

SEARCHED_ON = ((False, True), (True, False), (True, True))
"""Whether there is a small model, and whether the part itself has values."""

Part = Callable[[Probe], Outcome]
Cures = dict[str, int] | dict[str, frozenset[int]]


def failing(nth: int) -> Outcome:
    """It stops at that line, later ones after more has been traced."""
    fact = ExceptionFact(type="builtins.RuntimeError", message=f"failure {nth}.")
    frame = Frame(file="model.py", line=nth, function="forward", source=f"step{nth}()", module="", user=True)
    failure = Failure(stage="export", exceptions=(fact,), frames=(frame,), traced=10 * nth)
    return Outcome(probe="", status=OutcomeStatus.FAILED, failure=failure)


def shim(name: str, *failures: int, soundness: Any = "exact") -> Shim:
    cures = tuple(Cure(message=rf"failure {nth}\.") for nth in failures)
    return Shim(id=name, title=name, soundness=soundness, enter=nullcontext, cures=cures)  # type: ignore[arg-type]


def failing_part(failures: int, cures: Cures, numbers: Callable[[frozenset[str]], Any] | None = None) -> Part:
    """What fails at its first failure that no shim given cures."""

    def answer(probe: Probe) -> Outcome:
        cured = frozenset().union(*(_several(cures[name]) for name in probe.shims if name in cures))
        left = [nth for nth in range(1, failures + 1) if nth not in cured]
        if left:
            return failing(left[0])
        rows = (numbers(frozenset(probe.shims)) if numbers else RIGHT) if probe.to == "run" else ()
        rows = RIGHT[:1] if probe.to == "compare" else rows
        status = OutcomeStatus.PASSED if all(row.holds for row in rows) else OutcomeStatus.FAILED
        return Outcome(probe="", status=status, numbers=rows)

    return answer


def run_search(
    answer: Part,
    shims: tuple[Shim, ...],
    *,
    twin: bool = False,
    values: bool = True,
    to: str = "export",
    goal: str = "",
    alternatives: bool = True,
    see: Callable[[list[Probe]], object] = len,
    look: Callable[[Lookahead], object] = id,
) -> CureSearch:
    """A search at its end; `see` is called with the probes that wait for an answer at the same time, `look` with each
    that may be needed next."""
    root, small = (msgspec.structs.replace(one, to=to) for one in (ROOT, TWIN))
    search = CureSearch(
        root=root,
        first=answer(root),
        small=small if twin else None,
        values=values,
        shims=shims,
        versions={"torch": "2.13.0"},
        goal=goal or to,
        alternatives=alternatives,
    )
    driver = ProbeDriver()
    waiting = _probes(driver.start(search.steps()), look)
    while waiting:  # the newest first: what was asked ahead may be answered late
        see(waiting)
        probe = waiting.pop()
        outcome = msgspec.structs.replace(answer(probe), probe=probe.id)
        assert driver.awaits(outcome)
        waiting += _probes(driver.take(outcome), look)
    assert search.done
    return search


def _probes(requests: Iterable[Request], look: Callable[[Lookahead], object]) -> list[Probe]:
    """Those that an answer is needed of."""
    found = list(requests)
    for one in found:
        if isinstance(one, Lookahead):
            look(one)
    return [one for one in found if isinstance(one, Probe)]


def _several(failures: int | frozenset[int]) -> frozenset[int]:
    return frozenset({failures}) if isinstance(failures, int) else failures


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, tuple[Shim, ...], dict[str, int]]:
    """Failures one behind the other, and shims of every soundness; not every failure has one that works."""
    failures = draw(st.integers(1, 4))
    shims, cures = [], {}
    for number in range(draw(st.integers(0, 8))):
        nth, works = draw(st.integers(1, failures)), draw(st.booleans())
        name = f"s{number}"
        shims.append(shim(name, nth, soundness=draw(st.sampled_from(SOUND))))
        if works:
            cures[name] = nth
    return failures, tuple(shims), cures


@given(situations(), st.sampled_from(SEARCHED_ON))
def test_what_is_prescribed_cures_has_nothing_to_spare_and_is_as_sound_as_can_be(
    situation: tuple[int, tuple[Shim, ...], dict[str, int]], on: tuple[bool, bool]
) -> None:
    failures, shims, cures = situation
    answer = failing_part(failures, cures)
    found = run_search(answer, shims, twin=on[0], values=on[1]).prescription
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


@st.composite
def situations_at_odds(draw: st.DrawFn) -> tuple[int, tuple[Shim, ...], dict[str, int], frozenset[frozenset[str]]]:
    """Each failure has up to three shims that cure it, some of which spoil what another one does."""
    failures = draw(st.integers(2, 3))
    cures = {f"s{nth}{place}": nth for nth in range(1, failures + 1) for place in range(draw(st.integers(1, 3)))}
    allowed = [kind for kind in SOUND if kind != "unsound"]
    shims = tuple(shim(name, nth, soundness=draw(st.sampled_from(allowed))) for name, nth in cures.items())
    pairs = [frozenset(pair) for pair in itertools.combinations(cures, 2) if len({cures[name] for name in pair}) == 2]
    return failures, shims, cures, frozenset(draw(st.lists(st.sampled_from(pairs), max_size=4)))


@pytest.mark.slow
@given(situations_at_odds())
def test_where_two_shims_are_at_odds_another_way_to_the_same_failure_is_taken(
    situation: tuple[int, tuple[Shim, ...], dict[str, int], frozenset[frozenset[str]]],
) -> None:
    failures, shims, cures, odds = situation
    answer = failing_part(
        failures, cures, numbers=lambda given: WRONG if any(pair <= given for pair in odds) else RIGHT
    )
    found = run_search(answer, shims).prescription
    rank = {one.id: SOUNDNESS.index(one.soundness) for one in shims}
    choices = itertools.product(*([n for n, at in cures.items() if at == nth] for nth in range(1, failures + 1)))
    ranks = [max(map(rank.__getitem__, one)) for one in choices if not any(pair <= set(one) for pair in odds)]
    assert (SOUNDNESS.index(found.soundness) if found is not None else None) == min(ranks, default=None)


@st.composite
def situations_with_broad_shims(draw: st.DrawFn) -> tuple[int, tuple[Shim, ...], dict[str, frozenset[int]]]:
    """Each shim cures some of the failures that it fits."""
    failures = draw(st.integers(1, 3))
    shims, cures = [], {}
    for number in range(draw(st.integers(0, 8))):
        fits = draw(st.frozensets(st.integers(1, failures), min_size=1))
        name = f"s{number}"
        shims.append(shim(name, *fits, soundness=draw(st.sampled_from(SOUND))))
        cures[name] = frozenset(nth for nth in fits if draw(st.booleans()))
    return failures, tuple(shims), cures


@pytest.mark.slow
@given(situations_with_broad_shims(), st.sampled_from(SEARCHED_ON))
def test_a_set_of_shims_that_cure_several_failures_is_found_wherever_there_is_one(
    situation: tuple[int, tuple[Shim, ...], dict[str, frozenset[int]]], on: tuple[bool, bool]
) -> None:
    failures, shims, cures = situation
    found = run_search(failing_part(failures, cures), shims, twin=on[0], values=on[1]).prescription
    rank = {one.id: SOUNDNESS.index(one.soundness) for one in shims if one.soundness != "unsound"}
    least = [min((rank[n] for n in rank if nth in cures[n]), default=None) for nth in range(1, failures + 1)]
    expected = None if None in least else max(one for one in least if one is not None)
    assert (SOUNDNESS.index(found.soundness) if found is not None else None) == expected


@pytest.mark.slow
@given(situations_with_broad_shims(), st.sampled_from(SEARCHED_ON))
def test_an_alternative_cures_and_is_neither_sounder_nor_smaller_nor_the_prescription_with_more(
    situation: tuple[int, tuple[Shim, ...], dict[str, frozenset[int]]], on: tuple[bool, bool]
) -> None:
    failures, shims, cures = situation
    answer = failing_part(failures, cures)
    search = run_search(answer, shims, twin=on[0], values=on[1])
    found = search.prescription
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
        twin=True,
        values=False,
        alternatives=False,
        look=lambda named: ahead.append(tuple((one.part, one.shims) for one in named.probes)),
    )
    both = ("a", "b")
    assert not any(part == ROOT.part for part, _ in ahead[0])
    assert ((TWIN.part, both), (ROOT.part, both)) in [named[:2] for named in ahead]
    assert ((ROOT.part, both),) in ahead
    assert ahead[-1] == ()


def test_what_would_confirm_a_smaller_set_is_given_up_where_that_set_does_not_cure() -> None:
    """The alternative z + b holds a shim that fits both failures; z alone was tried before, and cures one only."""
    shims = (shim("a", 1), shim("z", 1, 2), shim("b", 2))
    met: list[Any] = []
    search = run_search(
        failing_part(2, {"a": 1, "z": 1, "b": 2}),
        shims,
        twin=True,
        values=False,
        see=lambda waiting: met.append("an answer is awaited"),
        look=lambda named: met.append(tuple((one.part, one.shims) for one in named.probes)),
    )
    assert [set(cured.shims) for cured in search.cures] == [{"a", "b"}, {"b", "z"}]
    named = met.index(((TWIN.part, ("z",)), (ROOT.part, ("z",))))
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


@given(pairs=st.lists(st.tuples(st.floats(0, 10), st.floats(1e-6, 10)), min_size=1, max_size=6))
def test_a_proof_tells_the_largest_difference_with_what_was_allowed_of_it(pairs: list[tuple[float, float]]) -> None:
    rows = [Agreement(inputs="set", kind="values", max_abs=min(pair), tolerance=max(pair)) for pair in pairs]
    proof = proof_of_rows(rows, refused=lambda row: row.refused)
    assert (proof.max_abs_diff, proof.tolerance) in {(row.max_abs, row.tolerance) for row in rows}
    assert proof.max_abs_diff == max(row.max_abs for row in rows)


def test_a_program_that_differs_from_eager_at_another_size_is_no_cure() -> None:
    shims = (shim("liar", 1), shim("honest", 1, soundness="signature"))
    numbers = {frozenset({"liar"}): WRONG, frozenset({"honest"}): RIGHT}
    search = run_search(failing_part(1, {"liar": 1, "honest": 1}, lambda names: numbers[names]), shims)
    assert search.prescription is not None
    assert search.prescription.shims == ("honest",)
    assert [(trial.shims, trial.result) for trial in search.trials] == [(("liar",), "error"), (("honest",), "cured")]
    assert "differs from eager by 3.0e+00" in search.trials[0].note


def test_only_what_says_that_it_is_specialised_may_refuse_other_sizes() -> None:
    exact = run_search(failing_part(1, {"a": 1}, lambda _: REFUSED), (shim("a", 1),))
    assert exact.prescription is None
    assert exact.note == "it exports with a, and the program refuses other sizes or values"
    wrong = run_search(failing_part(1, {"a": 1}, lambda _: WRONG), (shim("a", 1),))
    assert wrong.note == "it exports with a, and the program does not do the same as eager"
    specialised = run_search(failing_part(1, {"a": 1}, lambda _: REFUSED), (shim("a", 1, soundness="specialised"),))
    assert specialised.prescription is not None
    assert specialised.prescription.soundness == "specialised"


def _drawn(kind: Any, refusal: str = "") -> Agreement:
    return Agreement(inputs=f"drawn {kind}", kind=kind, made_up=True, refused=bool(refusal), trouble=refusal)


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ((_drawn("whole_numbers", "Guard failed: int__0_0.size()[0] >= 4"), _drawn("whole_numbers")), "precondition"),
        ((_drawn("sizes", "Guard failed: x.size()[0] >= 4"), _drawn("sizes")), "precondition"),
        ((_drawn("sizes", "Guard failed: x.size()[0] == 2"), _drawn("sizes")), "specialised"),
        ((_drawn("sizes", "Guard failed: x.size()[0] <= 4"), _drawn("values")), "specialised"),
        ((_drawn("values", "Runtime assertion failed"), _drawn("sizes")), "specialised"),
        (
            (_drawn("values", "f gives results of another structure than at the export"), _drawn("values")),
            "specialised",
        ),
        ((_drawn("sizes", "Guard failed: x.size()[0] == y.size()[0]"), _drawn("sizes")), "precondition"),
        ((_drawn("size_one_or_zero", "Guard failed: x.size()[0] >= 2"), _drawn("sizes")), "signature"),
        ((_drawn("sizes"), _drawn("values")), "signature"),
    ],
)
def test_a_refused_set_is_a_condition_and_fixes_only_what_no_other_set_shows_as_free(
    rows: tuple[Agreement, ...], shown: str
) -> None:
    numbers = (RIGHT[0], *rows)
    search = run_search(failing_part(1, {"a": 1}, lambda _: numbers), (shim("a", 1, soundness="signature"),))
    assert search.prescription is not None
    assert search.prescription.soundness == shown
    assert search.prescription.proof is not None
    assert search.prescription.proof.refused_by == tuple(row.trouble for row in rows if row.refused)


def test_of_two_that_are_equally_sound_the_one_that_refuses_fewer_inputs_comes_first() -> None:
    refuses = {"one": 1, "two": 2, "none": 0}
    shims = tuple(shim(name, 1, soundness="precondition") for name in ("two", "one", "none"))

    def numbers(names: frozenset[str]) -> tuple[Agreement, ...]:
        (name,) = names
        return (*RIGHT, _drawn("sizes"), *(_drawn("sizes", "Guard failed: x.size()[0] >= 4"),) * refuses[name])

    found = run_search(failing_part(1, dict.fromkeys(refuses, 1), numbers), shims).prescription
    assert found is not None
    assert found.shims == ("none",)
    assert [one.shims for one in found.alternatives] == [("one",), ("two",)]


def test_an_alternative_is_called_equally_sound_only_if_it_fixes_the_same_sizes() -> None:
    fixed = {"a": ("batch",), "more": ("batch", "steps"), "alike": ("batch",)}
    shims = tuple(shim(name, 1, soundness="specialised") for name in fixed)
    whole = failing_part(1, dict.fromkeys(fixed, 1))

    def answer(probe: Probe) -> Outcome:
        (name,) = probe.shims or ("",)
        return msgspec.structs.replace(whole(probe), fixed=fixed.get(name))

    found = run_search(answer, shims).prescription
    assert found is not None
    assert found.shims == ("a",)
    assert {one.shims[0]: one.why for one in found.alternatives} == {
        "more": "also fixes `steps`",
        "alike": "equally sound",
    }


OTHER_LAYOUT = Agreement(inputs="2 x 3, another layout", kind="layout", made_up=True, max_abs=3.0, tolerance=1e-4)


@pytest.mark.parametrize("soundness", ["exact", "signature", "precondition", "specialised"])
def test_a_program_that_is_wrong_in_another_memory_layout_alone_is_a_cure_with_that_condition(soundness: str) -> None:
    part = failing_part(1, {"a": 1}, lambda _: (RIGHT[0], OTHER_LAYOUT, RIGHT[1]))
    found = run_search(part, (shim("a", 1, soundness=soundness),)).prescription
    assert found is not None
    assert found.soundness == ("specialised" if soundness == "specialised" else "precondition")
    assert found.proof is not None
    assert (found.proof.inputs_tried, found.proof.max_abs_diff) == (2, 1e-7)
    (note,) = found.proof.notes
    assert note.startswith("valid only if the inputs have the memory layout of the example's")
    assert "2 x 3, another layout: its outputs differ from eager's by 3.0e+00" in note


def test_what_is_right_in_any_memory_layout_comes_first() -> None:
    shims = (shim("one", 1, soundness="precondition"), shim("any", 1, soundness="precondition"))
    numbers = {frozenset({"one"}): (RIGHT[0], OTHER_LAYOUT), frozenset({"any"}): RIGHT}
    found = run_search(failing_part(1, {"one": 1, "any": 1}, lambda names: numbers[names]), shims).prescription
    assert found is not None
    assert found.shims == ("any",)


@pytest.mark.parametrize("kind", ["layout", "values"])
def test_wrong_numbers_of_any_other_kind_are_no_condition(kind: Any) -> None:
    rows = (RIGHT[0], OTHER_LAYOUT, Agreement(inputs="drawn", kind=kind, made_up=True, max_abs=3.0, tolerance=1e-4))
    search = run_search(failing_part(1, {"a": 1}, lambda _: rows), (shim("a", 1),))
    assert (search.prescription is not None) == (kind == "layout")


FRAMES = '''
import torch
from torch import nn
from torch.export import Dim

class Frames(nn.Module):
    """Overlapping frames as a view, by the strides of its input."""

    def forward(self, x):
        count, (row, step) = (x.shape[1] - 4) // 2 + 1, x.stride()
        return x.as_strided((x.shape[0], count, 4), (row, step * 2, step)) * 2

def build():
    return Frames().eval(), (torch.randn(3, 16),), {}, {"x": {0: Dim("batch"), 1: Dim("time", min=4)}}
'''


@pytest.mark.long
@pytest.mark.slow
def test_a_cure_that_keeps_strides_is_offered_with_its_condition(tmp_path: Path) -> None:
    (tmp_path / "frames.py").write_text(FRAMES)
    report = scan_file(tmp_path / "frames.py", cure=True)
    (part,) = report.parts
    assert part.verdict == "cured"
    told = " ".join(wording.prescription(part, report))
    assert "Valid only if the inputs have the memory layout of the example's" in told
    assert "under a condition" in wording.cure(part)
    assert part.prescription is not None
    (tried,) = try_shims(TargetRef(ref=f"{tmp_path / 'frames.py'}:build"), ScanOptions(), part.prescription.shims)
    assert (tried.result, tried.cured, tried.soundness) == ("cured", True, part.prescription.soundness)
    assert tried.condition.startswith("valid only if the inputs have the memory layout of the example's")
    assert tried.after == "exports, but is wrong on inputs in another memory layout"


class Rows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1) * int(x.shape[0])


@pytest.mark.parametrize(
    ("shims", "fixed"), [(("static-dim",), ("rows", "steps")), (("auto-dims",), ("rows",)), (("len-as-size",), ())]
)
def test_the_sizes_that_a_program_has_as_constants_are_those_of_its_inputs(
    shims: tuple[str, ...], fixed: tuple[str, ...]
) -> None:
    module = Rows() if fixed else nn.ReLU()
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("steps")}
    shapes = {"input" if not fixed else "x": sizes}
    call = ExportCall(module=module, args=(torch.randn(3, 5),), dynamic_shapes=shapes)
    (name,) = shapes
    axes = {"rows": (f"{name}[0]",), "steps": (f"{name}[1]",)}
    with apply_shims([find(one) for one in shims] if fixed else [], call) as given:
        assert find_fixed_axes(export_program(given), call, given, axes) == fixed


STRIDED = '''
import torch
from torch import nn
from torch.export import Dim

class Strided(nn.Module):
    """Lengths after a convolution: rows of zeros beyond the longest are cut."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, stride=2, padding=1)

    def forward(self, x, lengths):
        rows = self.conv(x).transpose(1, 2)
        lengths = (lengths - 1) // 2 + 1
        keep = int(lengths.max())
        assert type(keep) is not float  # int-as-item does not apply
        mask = torch.arange(keep)[None] < lengths[:, None]
        return rows[:, :keep] * mask[..., None]

def build():
    torch.manual_seed(0)
    dims = {"x": {0: Dim("batch"), 2: Dim("time", min=4)}, "lengths": {0: Dim("batch")}}
    return Strided().eval(), (torch.randn(2, 3, 17), torch.tensor([17, 9])), {}, dims
'''


@pytest.mark.long
@pytest.mark.slow
def test_a_program_that_refuses_one_row_fixes_no_size(tmp_path: Path) -> None:
    (tmp_path / "strided.py").write_text(STRIDED)
    (part,) = scan_file(tmp_path / "strided.py", cure=True).parts
    assert part.prescription is not None
    assert part.prescription.proof is not None
    assert part.prescription.proof.refused
    assert part.prescription.soundness == "precondition"
    assert "under a condition" in wording.cure(part)


def test_a_specialised_program_whose_outputs_have_another_shape_than_eagers_is_no_cure() -> None:
    numbers = (RIGHT[0], Agreement(inputs="4 x 3", trouble="output 0 is float32[2, 3], and eager gives float32[4, 3]"))
    search = run_search(failing_part(1, {"a": 1}, lambda _: numbers), (shim("a", 1, soundness="specialised"),))
    assert search.prescription is None


def test_a_specialised_program_may_refuse_but_not_answer_wrongly() -> None:
    search = run_search(failing_part(1, {"a": 1}, lambda _: WRONG), (shim("a", 1, soundness="specialised"),))
    assert search.prescription is None


def test_without_values_a_cure_is_told_as_not_proved() -> None:
    search = run_search(failing_part(1, {"a": 1}), (shim("a", 1),), values=False)
    assert search.prescription is not None
    assert search.prescription.proof is not None
    assert search.prescription.proof.max_abs_diff is None
    assert "no values" in search.note


def test_a_failure_that_comes_earlier_is_not_followed() -> None:
    """A shim that breaks the call itself moves the failure, to where less was traced."""

    def answer(probe: Probe) -> Outcome:
        return failing(1) if "breaks" in probe.shims else failing(2)

    search = run_search(answer, (shim("breaks", 2), shim("follows", 1)))
    assert [(trial.shims, trial.result) for trial in search.trials] == [(("breaks",), "error")]


def test_where_the_large_one_fails_behind_the_twins_cure_the_search_goes_on_there() -> None:
    def answer(probe: Probe) -> Outcome:
        failures = 1 if probe.part.endswith("~twin") else 2
        return failing_part(failures, {"a": 1, "b": 2})(probe)

    search = run_search(answer, (shim("a", 1), shim("b", 2)), twin=True, values=False)
    assert search.prescription is not None
    assert set(search.prescription.shims) == {"a", "b"}
    assert search.prescription.proof is not None
    assert search.prescription.proof.max_abs_diff == 1e-7


def test_what_cures_the_small_model_is_proved_on_a_part_that_has_values() -> None:
    asked = []

    def answer(probe: Probe) -> Outcome:
        asked.append((probe.part, probe.to, probe.shims))
        return failing_part(1, {"a": 1, "b": 1})(probe)

    found = run_search(answer, (shim("a", 1), shim("b", 1)), twin=True, values=True).prescription
    assert found is not None
    assert found.proof is not None
    assert (found.shims, found.proof.on) == (("a",), PART_ITSELF)
    assert [(other.shims, other.compared and other.compared.on) for other in found.alternatives] == [
        (("b",), ON_SMALL_MODEL)
    ]
    assert ("full", "run", ("a",)) in asked
    assert ("full", "ground", ()) in asked
    assert not [one for one in asked if one[0] == "full" and "b" in one[2]]


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


@pytest.mark.parametrize("values", [False, True])
def test_where_the_part_itself_could_not_be_asked_the_note_says_so(values: bool) -> None:
    def answer(probe: Probe) -> Outcome:
        if probe.part == "full" and probe.shims:
            return Outcome(probe="", status=OutcomeStatus.NO_DEVICE, note="the card is taken")
        return failing_part(1, {"a": 1})(probe)

    search = run_search(answer, (shim("a", 1),), twin=True, values=values)
    assert search.prescription is None
    assert search.note == "shims work on the small model, and could not be tried at full size: the card is taken"


def test_what_is_wrong_at_full_size_is_no_cure() -> None:
    def answer(probe: Probe) -> Outcome:
        wrong = probe.part == "full"
        return failing_part(1, {"a": 1}, numbers=lambda _: WRONG if wrong else RIGHT)(probe)

    search = run_search(answer, (shim("a", 1),), twin=True, values=True)
    assert search.prescription is None
    assert "does not do the same" in search.note


@pytest.mark.parametrize("spare", ["of_the_cure", "by_an_alternative"])
def test_the_part_itself_is_asked_once_under_shims_and_for_the_smallest_set(spare: str) -> None:
    """The first set that cures is a + b; b alone suffices, or an alternative to both, which is found last."""
    shims: tuple[Shim, ...] = (
        shim("a", 1),
        shim("b", 2),
        shim("z-both", 1, 2),
        shim("z-none", 2, soundness="signature"),
    )
    cures = {"a": frozenset({1}), "b": frozenset({2}), "z-both": frozenset({1, 2})}
    if spare == "of_the_cure":
        shims, cures = shims[:2], {"a": frozenset({1}), "b": frozenset({1, 2})}
    asked = []

    def answer(probe: Probe) -> Outcome:
        asked.append(probe)
        return failing_part(2, cures)(probe)

    search = run_search(answer, shims, twin=True, values=False)
    assert search.prescription is not None
    assert search.prescription.shims == (("b",) if spare == "of_the_cure" else ("z-both",))
    assert [probe.shims for probe in asked if probe.part == "full" and probe.shims] == [search.prescription.shims]


FIXTURES = Path(__file__).parents[2] / "fixtures"


def failing_later(nth: int) -> Outcome:
    """The program exports, and torch.onnx stops at that line."""
    found = failing(nth)
    assert found.failure is not None
    failure = msgspec.structs.replace(found.failure, stage="translate")
    return msgspec.structs.replace(found, failure=failure, stages={"export": "pass", "translate": "fail"})


@pytest.mark.parametrize("twin", [False, True])
def test_beyond_the_export_the_numbers_of_what_translates_are_asked_for_apart(twin: bool) -> None:
    """A shim that lets it translate and computes something else is no cure; one that breaks the export is none."""
    asked = list[tuple[str, tuple[str, ...]]]()

    def answer(probe: Probe) -> Outcome:
        asked.append((probe.to, probe.shims))
        if "breaks" in probe.shims:
            return failing(7)
        if probe.to == "run":
            rows = WRONG if "liar" in probe.shims else RIGHT
            passed = all(row.holds for row in rows)
            return Outcome(probe="", status=OutcomeStatus.PASSED if passed else OutcomeStatus.FAILED, numbers=rows)
        if probe.to == "ground" or {"liar", "honest"} & {*probe.shims}:
            return Outcome(probe="", status=OutcomeStatus.PASSED)
        return failing_later(3)

    shims = (shim("breaks", 3), shim("liar", 3), shim("honest", 3, soundness="signature"))
    search = run_search(answer, shims, twin=twin, values=not twin, to="onnx")
    results = [(trial.shims, trial.result) for trial in search.trials]
    assert results[:3] == [(("breaks",), "error"), (("liar",), "error"), (("honest",), "cured")]
    assert search.prescription is not None
    assert search.prescription.shims == ("honest",)
    assert search.prescription.proof is not None
    assert search.prescription.proof.inputs_tried == len(RIGHT)
    assert {to for to, _ in asked} <= {"onnx", "run", "compare", "ground"}
    assert ("onnx", ("honest",)) in asked


@st.composite
def situations_behind(draw: st.DrawFn) -> tuple[int, int, tuple[Shim, ...], dict[str, int]]:
    """As `situations`, where the last failures are of the translation; each of the export's has a shim."""
    exports, later = draw(st.integers(1, 2)), draw(st.integers(0, 2))
    shims, cures = [], {}
    for nth in range(1, exports + later + 1):
        for number in range(draw(st.integers(int(nth <= exports), 2))):
            name = f"s{nth}{number}"
            soundness = draw(st.sampled_from([one for one in SOUND if one != "unsound"]))
            shims.append(shim(name, nth, soundness=soundness))
            if draw(st.booleans()) or (nth <= exports and number == 0):
                cures[name] = nth
    return exports, later, tuple(draw(st.permutations(shims))), cures


@pytest.mark.slow
@given(situations_behind(), st.booleans())
def test_what_cures_the_export_is_asked_as_far_as_the_scan_goes(
    situation: tuple[int, int, tuple[Shim, ...], dict[str, int]], twin: bool
) -> None:
    """Where it fails there the search goes on; without success the cure of the export stays, and the failure is told.

    `stages` say what was asked: with the shims that are prescribed, as far as the goal.
    """
    exports, later, shims, cures = situation

    def answer(probe: Probe) -> Outcome:
        left = sorted({*range(1, exports + later + 1)} - {cures[one] for one in probe.shims if one in cures})
        if left and left[0] <= exports:
            return failing(left[0])
        if left and probe.to == "onnx":
            return failing_later(left[0])
        stages = {"export": "pass", **({"translate": "pass"} if probe.to == "onnx" else {})}
        rows = RIGHT if probe.to == "run" else RIGHT[:1] if probe.to == "compare" else ()
        return Outcome(probe="", status=OutcomeStatus.PASSED, stages=stages, numbers=rows)

    search = run_search(answer, shims, twin=twin, values=not twin, goal="onnx")
    found = search.prescription
    assert found is not None
    assert found.proof is not None
    assert found.proof.inputs_tried == len(RIGHT)
    solved = {cures[name] for name in found.shims}
    assert len(found.shims) == len(solved)
    assert {*range(1, exports + 1)} <= solved
    uncured = [nth for nth in range(exports + 1, exports + later + 1) if nth not in cures.values()]
    if uncured:
        assert search.note
        assert found.stages == {"export": "pass", "translate": "fail"}
        assert {*range(1, exports + 1)} == solved
        hidden = [one.failure for one in search.hidden_failures() if one.failure is not None]
        assert [one.stage for one in hidden if one.stage != "export"] == ["translate"]
    else:
        assert not search.note
        assert found.stages == {"export": "pass", "translate": "pass"}
        assert solved == {*range(1, exports + later + 1)}


@pytest.mark.parametrize("translates", [True, False])
def test_what_cures_the_small_model_is_asked_of_the_part_once_as_far_as_the_scan_goes(*, translates: bool) -> None:
    """A part without values is not exported by itself first: the same attempt exports it and goes on."""
    asked: list[Probe] = []

    def answer(probe: Probe) -> Outcome:
        asked.append(probe)
        if "cures" not in probe.shims:
            return failing(1)
        if probe.to == "onnx" and not translates:
            return failing_later(2)
        rows = RIGHT if probe.to == "run" else RIGHT[:1] if probe.to == "compare" else ()
        return Outcome(probe="", status=OutcomeStatus.PASSED, stages={"export": "pass"}, numbers=rows)

    search = run_search(answer, (shim("cures", 1),), twin=True, values=False, goal="onnx")
    assert search.prescription is not None
    assert search.prescription.shims == ("cures",)
    assert [one.to for one in asked if one.part == ROOT.part and one.shims] == ["onnx"]
    assert bool(search.note) != translates


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


BIASED = '''
import torch
from torch import nn

class Attention(nn.Module):
    """Its mask is a parameter, as relative positions are."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 24)
        self.bias = nn.Parameter(torch.randn(2, 5, 5))

    def forward(self, rows):
        batch, length, width = rows.shape
        query, key, value = (one.view(batch, length, 2, 4).transpose(1, 2) for one in self.mix(rows).chunk(3, -1))
        mask = self.bias[None].expand(batch, -1, -1, -1)
        found = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return found.transpose(1, 2).contiguous().view(batch, length, width)

class Clamped(nn.Module):
    """It has another failure, before that one."""

    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, rows):
        if rows.abs().max() > 100:
            rows = rows.clamp(-100, 100)
        return self.attention(rows)

def build():
    return Attention().eval(), (torch.randn(2, 5, 8),)

def build_clamped():
    return Clamped().eval(), (torch.randn(2, 5, 8),)
'''


@pytest.mark.long
@pytest.mark.slow
def test_what_exports_and_does_not_translate_is_cured_and_its_file_computes_the_same(tmp_path: Path) -> None:
    (tmp_path / "biased.py").write_text(BIASED)
    report = scan_file(tmp_path / "biased.py", cure=True, to="onnx")
    (part,), (finding,) = report.parts, report.findings
    assert (finding.stage, str(finding.kind)) == ("translate", "translate")
    assert part.verdict == "cured"
    assert part.prescription is not None
    assert part.prescription.proof is not None
    assert part.prescription.proof.inputs_tried > 2
    assert wording.cure(part).startswith("translates to ONNX with 1 shim (")
    assert wording.export_command(part, report).endswith("--to onnx -o model.onnx")
    code = wording.prescription_code(part)
    assert code.startswith("import torch\n")
    assert "torch.onnx.export(program, dynamo=True)" in code
    target, options = TargetRef(ref=f"{tmp_path / 'biased.py'}:build"), ScanOptions(to="onnx")
    tried = [next(try_shims(target, options, shims)) for shims in (("no-grad",), part.prescription.shims)]
    assert [(one.result, one.cured) for one in tried] == [("same", False), ("cured", True)]
    module, args = runpy.run_path(str(tmp_path / "biased.py"))["build"]()
    with pytest.raises(Exception, match="Cannot view"):
        torch.onnx.export(torch.export.export(module, args, strict=False), dynamo=True, verbose=False)
    shims = [find(name) for name in part.prescription.shims]
    with apply_shims(shims, ExportCall(module=module, args=args)) as given:
        made = torch.onnx.export(export_program(given), dynamo=True, verbose=False)
        assert made is not None
        made.save(str(tmp_path / "biased.onnx"))
    (found,) = OnnxSession(tmp_path / "biased.onnx").run([args[0]])
    with torch.no_grad():
        torch.testing.assert_close(found, module(*args), rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.slow
def test_what_cures_the_export_is_made_to_translate_too(tmp_path: Path) -> None:
    (tmp_path / "biased.py").write_text(BIASED)
    report = scan_file(tmp_path / "biased.py", factory="build_clamped", cure=True, to="onnx")
    (part,) = report.parts
    found = part.prescription
    assert found is not None
    assert found.shims[0] == "branch-as-where"
    assert len(found.shims) == 2
    assert found.stages["translate"] == "pass"
    assert wording.cure(part) == "exports and translates to ONNX with 2 shims (under a condition)"
    assert wording.export_command(part, report).endswith("--to onnx -o model.onnx")
    assert [(one.stage, one.modules) for one in report.findings] == [("export", ("",)), ("translate", ("attention",))]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shims", "soundness"),
    [
        ("unregistered_pytree_out", ("register-dataclass-pytree",), "exact"),
        ("constraint_between_inputs", ("suggested-relations",), "precondition"),
        ("tolist_loop", ("hoist",), "signature"),
        ("specialised_dynamic_dim", ("loops-as-scan",), "precondition"),
    ],
)
def test_a_fixture_is_cured_and_its_numbers_agree(name: str, shims: tuple[str, ...], soundness: str) -> None:
    report = scan_file(FIXTURES / f"{name}.py", cure=True)
    found = report.parts[0].prescription
    assert report.parts[0].verdict == "cured"
    assert found is not None
    assert (found.shims, found.soundness) == (shims, soundness)
    assert found.proof is not None
    assert found.proof.inputs_tried >= 2
    assert found.proof.max_abs_diff is not None
    assert found.proof.tolerance is not None
    assert found.proof.max_abs_diff <= found.proof.tolerance
    assert "cured" in [tried.result for tried in report.findings[0].shims_tried]


@pytest.mark.long
@pytest.mark.slow
def test_a_failure_that_the_part_never_meets_is_said_to_be_a_submodules_alone(tmp_path: Path) -> None:
    (tmp_path / "boxed.py").write_text(
        "import torch\n\n\n"
        "class Box:\n    def __init__(self, value):\n        self.value = value\n\n\n"
        "class Gate(torch.nn.Module):\n    def forward(self, x):\n        return Box(x * 2)\n\n\n"
        "class Whole(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.gate, self.up = Gate(), torch.nn.Linear(3, 3)\n\n"
        "    def forward(self, x):\n        if x.sum() > 0:\n            x = x + 1\n"
        "        return self.up(self.gate(x).value)\n\n\n"
        "def build():\n    return Whole().eval(), (torch.ones(2, 3),)\n"
    )
    report = scan_file(tmp_path / "boxed.py", cure=True)
    assert report.parts[0].verdict == "cured"
    alone = {finding.kind: finding.only_alone for finding in report.findings}
    assert alone == {"data_dependent_guard": False, "unregistered_pytree": True}


@pytest.mark.long
@pytest.mark.slow
def test_a_failure_that_a_fixed_size_hides_is_not_said_to_be_a_submodules_alone(tmp_path: Path) -> None:
    """The second loop asks for the same size; the part does not meet it because the first made that a constant."""
    (tmp_path / "loops.py").write_text(
        "import torch\n\n\n"
        "class Seeded(torch.nn.Module):\n    def forward(self, x):\n        rows = [x[:, 0]]\n"
        "        for t in range(1, x.shape[1]):\n            rows.append(0.5 * rows[-1] + x[:, t])\n"
        "        return torch.stack(rows, 1)\n\n\n"
        "class Back(torch.nn.Module):\n    def forward(self, x):\n        h = x[:, 0] * 0\n"
        "        for t in reversed(range(x.shape[1])):\n            if t % 2:\n                h = h + x[:, t]\n"
        "        return h\n\n\n"
        "def build():\n    dims = {0: torch.export.Dim('b'), 1: torch.export.Dim('t')}\n"
        "    return torch.nn.Sequential(Seeded(), Back()).eval(), (torch.randn(2, 6, 4),), {}, (dims,)\n"
    )
    report = scan_file(tmp_path / "loops.py", cure=True)
    assert report.parts[0].prescription is not None
    assert report.parts[0].prescription.soundness == "specialised"
    assert {finding.modules: finding.only_alone for finding in report.findings} == {("0",): False, ("1",): False}


@pytest.mark.long
@pytest.mark.slow
def test_one_submodule_can_be_asked_alone(tmp_path: Path) -> None:
    report = scan_file(FIXTURES / "parent_own_code_and_child.py", modules=("encoder.gate",))
    statuses = {module.fqn: module.status for module in report.parts[0].modules}
    assert statuses[""] == "not_asked"
    assert statuses["encoder.gate"] in FAILING
    assert report.parts[0].only == ("encoder.gate",)
    passing = scan_file(FIXTURES / "parent_own_code_and_child.py", modules=("encoder.proj",))
    assert passing.parts[0].verdict == "passes"
    assert not passing.exports, "one submodule says nothing of the whole"
    with pytest.raises(UsageError, match=r"No part calls a submodule .encoder\.gat"):
        scan_file(FIXTURES / "parent_own_code_and_child.py", modules=("encoder.gat",))


@pytest.mark.night
def test_shims_tried_on_their_own_are_noted_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    target, run = f"{FIXTURES / 'unregistered_pytree_out.py'}:build", tmp_path / "run"
    assert command_line(["scan", target, "--no-cure", "-q", "--out", str(run)]) == 1
    assert command_line(["shims", "try", "register-dataclass-pytree", target, "--run", str(run)]) == 0
    (finding,) = read_run(run).state.findings.values()
    assert [(tried.shim, tried.result) for tried in finding.shims_tried] == [("register-dataclass-pytree", "cured")]
    assert command_line(["shims", "try", "no-grad", target, "--run", str(run)]) == 1
    (finding,) = read_run(run).state.findings.values()
    assert [tried.result for tried in finding.shims_tried] == ["cured", "same"]
    again = ["shims", "try", "no-grad", "--run", str(run)]
    assert command_line([*again, f"{FIXTURES / 'boolean_mask.py'}:build"]) == 2, "another target"
    assert command_line([*again, target, "--static"]) == 2, "another way to build it"
    assert command_line(["shims", "try", "+", target]) == 2, "no shim"
    assert read_run(run).state.findings[finding.id] == finding


_LOOP_OVER_A_SIZE = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def mask(self, ids, length):
        return torch.tensor(list(range(ids.size(1)))[::-1])[None, :] < length[:, None]

    def forward(self, ids):
        ids = torch.cat((torch.ones_like(ids[:, :1]), ids), dim=1)
        return self.words(ids) * self.mask(ids, (ids != 0).sum(-1))[..., None]


def build():
    return Net(), (torch.randint(1, 10, (2, 5)),), {}, ({1: torch.export.Dim("words")},)
"""


@pytest.mark.long
@pytest.mark.slow
def test_what_loops_over_a_size_and_computes_from_whole_numbers_is_hoisted(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(_LOOP_OVER_A_SIZE)
    found = scan_file(path, cure=True).parts[0].prescription
    assert found is not None
    assert (found.shims, found.soundness) == (("hoist:Net.mask",), "signature")


UNNAMED = """import torch
from torch import nn


class Sum(nn.Module):
    def forward(self, x, *rest, scale):
        for one in rest:
            x = x + one
        if x.sum() > 0:
            return x * scale
        return x


def build():
    args = (torch.ones(3, 4), torch.ones(3, 4), torch.ones(3, 4))
    return {"module": Sum().eval(), "args": args, "kwargs": {"scale": torch.ones(1)}}
"""


@pytest.mark.long
@pytest.mark.slow
def test_the_code_to_paste_takes_inputs_that_have_no_names(tmp_path: Path) -> None:
    """Story: `kwargs=inputs` was printed for a forward with `*rest`, which no keyword reaches."""
    file = tmp_path / "unnamed.py"
    file.write_text(UNNAMED)
    (part,) = scan_file(file, cure=True).parts
    code = wording.prescription_code(part)
    assert part.verdict == "cured"
    built = runpy.run_path(str(file))["build"]()
    names = {"model": built["module"], "args": built["args"], "kwargs": built["kwargs"], "shapes": None}
    names |= {"other_args": built["args"], "other_kwargs": {"scale": torch.full((1,), 2.0)}}
    exec(code, names)
    assert names["outputs"].equal(torch.full((3, 4), 6.0))

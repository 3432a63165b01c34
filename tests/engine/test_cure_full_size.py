"""What cures a small model is asked of the part itself, once, and as far as the scan goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cure_situations import (
    RIGHT,
    ROOT,
    SMALL,
    WRONG,
    failing,
    failing_later,
    failing_part,
    run_search,
    shim,
    situations_behind,
)
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.report.wording.shim_tries import ON_SMALL_MODEL, PART_ITSELF
from exportdoctor.shims import Shim


def test_where_the_large_one_fails_behind_the_small_models_cure_the_search_goes_on_there() -> None:
    def answer(probe: Probe) -> Outcome:
        failures = 1 if probe.part == SMALL.part else 2
        return failing_part(failures, {"a": 1, "b": 2})(probe)

    search = run_search(answer, (shim("a", 1), shim("b", 2)), small=True, values=False)
    assert search.prescription is not None
    assert set(search.prescription.shims) == {"a", "b"}
    assert search.prescription.proof is not None
    assert search.prescription.proof.max_abs_diff == 1e-7


def test_what_cures_the_small_model_is_proved_on_a_part_that_has_values() -> None:
    asked = []

    def answer(probe: Probe) -> Outcome:
        asked.append((probe.part, probe.to, probe.shims))
        return failing_part(1, {"a": 1, "b": 1})(probe)

    found = run_search(answer, (shim("a", 1), shim("b", 1)), small=True, values=True).prescription
    assert found is not None
    assert found.proof is not None
    assert (found.shims, found.proof.on) == (("a",), PART_ITSELF)
    assert [(other.shims, other.compared and other.compared.on) for other in found.alternatives] == [
        (("b",), ON_SMALL_MODEL)
    ]
    assert ("full", "run", ("a",)) in asked
    assert ("full", "ground", ()) in asked
    assert not [one for one in asked if one[0] == "full" and "b" in one[2]]


@pytest.mark.parametrize("values", [False, True])
def test_where_the_part_itself_could_not_be_asked_the_note_says_so(values: bool) -> None:
    def answer(probe: Probe) -> Outcome:
        if probe.part == "full" and probe.shims:
            return Outcome(probe="", status=OutcomeStatus.NO_DEVICE, note="the card is taken")
        return failing_part(1, {"a": 1})(probe)

    search = run_search(answer, (shim("a", 1),), small=True, values=values)
    assert search.prescription is None
    assert search.note == "shims work on the small model, and could not be tried at full size: the card is taken"


def test_what_is_wrong_at_full_size_is_no_cure() -> None:
    def answer(probe: Probe) -> Outcome:
        wrong = probe.part == "full"
        return failing_part(1, {"a": 1}, numbers=lambda _: WRONG if wrong else RIGHT)(probe)

    search = run_search(answer, (shim("a", 1),), small=True, values=True)
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

    search = run_search(answer, shims, small=True, values=False)
    assert search.prescription is not None
    assert search.prescription.shims == (("b",) if spare == "of_the_cure" else ("z-both",))
    assert [probe.shims for probe in asked if probe.part == "full" and probe.shims] == [search.prescription.shims]


@pytest.mark.parametrize("small", [False, True])
def test_beyond_the_export_the_numbers_of_what_translates_are_asked_for_apart(small: bool) -> None:
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
    search = run_search(answer, shims, small=small, values=not small, to="onnx")
    results = [(trial.shims, trial.result) for trial in search.trials]
    assert results[:3] == [(("breaks",), "error"), (("liar",), "error"), (("honest",), "cured")]
    assert search.prescription is not None
    assert search.prescription.shims == ("honest",)
    assert search.prescription.proof is not None
    assert search.prescription.proof.inputs_tried == len(RIGHT)
    assert {to for to, _ in asked} <= {"onnx", "run", "compare", "ground"}
    assert ("onnx", ("honest",)) in asked


@pytest.mark.slow
@given(situations_behind(), st.booleans())
def test_what_cures_the_export_is_asked_as_far_as_the_scan_goes(
    situation: tuple[int, int, tuple[Shim, ...], dict[str, int]], small: bool
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

    search = run_search(answer, shims, small=small, values=not small, goal="onnx")
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

    search = run_search(answer, (shim("cures", 1),), small=True, values=False, goal="onnx")
    assert search.prescription is not None
    assert search.prescription.shims == ("cures",)
    assert [one.to for one in asked if one.part == ROOT.part and one.shims] == ["onnx"]
    assert bool(search.note) != translates

"""A cure is proved by its numbers: no program that differs from eager is one, and what it refuses is its condition."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cure_situations import REFUSED, RIGHT, WRONG, failing_part, run_search, shim
from exportdoctor.core.failure.finding import ShimTry
from exportdoctor.core.records.outcome import Agreement, Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.engine.cure.catalogue import ShimCatalogue
from exportdoctor.engine.cure.prescription import proof_of_rows
from exportdoctor.report.wording.export import unloadable_file
from exportdoctor.report.wording.shim_tries import shim_effect, shim_results
from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.worker.attempt.fixed_axes import find_fixed_axes


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
    assert wrong.note == (
        "it exports with a, and the program does not do the same as eager (on inputs 4 x 3: an output differs from "
        "eager's by 3.0e+00, 1e-04 is allowed)"
    )
    specialised = run_search(failing_part(1, {"a": 1}, lambda _: REFUSED), (shim("a", 1, soundness="specialised"),))
    assert specialised.prescription is not None
    assert specialised.prescription.soundness == "specialised"


@pytest.mark.parametrize("helped", [True, False])
def test_a_program_that_is_right_where_it_answers_is_told_with_what_it_refuses(helped: bool) -> None:
    """Story: "does not work" of the shim that did what the finding advised, beside another that got further."""
    (trial,) = run_search(failing_part(1, {"a": 1}, lambda _: REFUSED), (shim("a", 1),)).trials
    assert trial.result == "error"
    tries = [ShimTry(shim="a", result=trial.result, note=trial.note), ShimTry(shim="b", result="cured")]
    why = "exports, but refuses what eager takes: inputs 4 x 3: AssertionError: Guard failed"
    assert shim_results(tries[: 1 + helped]) == f"a ({why})" + ", b (works)" * helped
    (trial,) = run_search(failing_part(1, {"a": 1}, lambda _: WRONG), (shim("a", 1),)).trials
    assert shim_effect(ShimTry(shim="a", result=trial.result, note=trial.note)) == "does not work"


def _drawn(kind: Any, refusal: str = "") -> Agreement:
    return Agreement(inputs=f"drawn {kind}", kind=kind, made_up=True, refused=bool(refusal), trouble=refusal)


def _of_numbers(*refusals: str) -> tuple[Agreement, ...]:
    return tuple(
        msgspec.structs.replace(_drawn("whole_numbers", refusal), inputs=f"n = {number}")
        for number, refusal in enumerate(refusals)
    )


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
        ((_drawn("sizes"), _drawn("values"), *_of_numbers("Guard failed: s % 2 == 0", "s >= 8")), "specialised"),
        ((_drawn("sizes"), _drawn("values"), *_of_numbers("Guard failed: s % 2 == 0", "")), "precondition"),
        ((_drawn("sizes"), _drawn("values"), *_of_numbers("Guard failed: s % 2 == 0")), "precondition"),
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
    proof = search.prescription.proof
    raised = {row.trouble: row.inputs for row in rows if row.refused}
    assert dict(zip(proof.refused_by, proof.refused_at, strict=True)) == raised


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


@pytest.mark.parametrize("other", ["signature", "precondition", "specialised"])
@pytest.mark.parametrize("alternatives", [True, False])
def test_a_program_of_which_a_file_can_be_written_comes_first(other: str, alternatives: bool) -> None:
    """Story: the search ended at a shim whose program could not be saved, and the report had no command."""
    shims = (shim("a", 1, soundness="exact"), shim("b", 1, soundness=other))
    kept = msgspec.structs.replace(RIGHT[0], note=unloadable_file("AssertionError: vr must not be None"))

    def numbers(names: frozenset[str]) -> tuple[Agreement, ...]:
        return (kept, *RIGHT[1:]) if "a" in names else RIGHT

    found = run_search(failing_part(1, {"a": 1, "b": 1}, numbers), shims, alternatives=alternatives).prescription
    assert found is not None
    assert found.shims == ("b",)
    assert {one.why for one in found.alternatives} <= {"no file of its program can be written"}
    alone = run_search(failing_part(1, {"a": 1}, numbers), shims).prescription
    assert alone is not None
    assert alone.shims == ("a",)
    file = run_search(failing_part(1, {"a": 1, "b": 1}, numbers), shims, goal="onnx").prescription
    assert file is not None
    assert file.shims == ("a",)  # an ONNX file is another


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


@pytest.mark.parametrize(
    ("fixed", "rows", "shown"),
    [
        ((), (), "precondition"),
        (("rows",), (), "specialised"),
        (None, (), "specialised"),
        ((), (_drawn("sizes", "Guard failed: x.size()[0] == 2"),), "specialised"),
        ((), (_drawn("sizes", "Guard failed: x.size()[0] // 4 == 3"), _drawn("sizes")), "specialised"),
        ((), (_drawn("sizes", "Guard failed: x.size()[0] % 4 == 0"), _drawn("sizes")), "precondition"),
    ],
)
def test_where_torch_decides_which_sizes_are_fixed_the_program_shows_whether_one_is(
    fixed: tuple[str, ...] | None, rows: tuple[Agreement, ...], shown: str
) -> None:
    catalogue = ShimCatalogue(
        exporter="export", shims=(find("auto-dims"), find("static-dim")), versions={}, axes={}, allow=()
    )
    outcome = Outcome(probe="p", status=OutcomeStatus.PASSED, fixed=fixed, numbers=(RIGHT[0], *rows))
    assert catalogue.shown_soundness(("auto-dims",), outcome) == shown
    assert [step.soundness for step in catalogue.steps(("auto-dims",), outcome)] == [shown]
    assert catalogue.shown_soundness(("static-dim",), outcome) == "specialised"


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

"""Kinds of failure: each rule decides a recorded failure, the same cause has one kind in every exporter."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.core.failure.classify import fits, kind_of
from exportdoctor.core.failure.evidence import evidence_of
from exportdoctor.core.failure.kinds import (
    KIND_OF_OUR_EXCEPTION,
    KIND_OF_STATUS,
    KINDS,
    LYING_KERNEL,
    NUMBERS_DIFFER,
    RULES,
    TRANSLATION,
    FailureKind,
    Rule,
)
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, OpFact, Outcome, OutcomeStatus

SOURCES = sorted(p for room in ("src", "tui") for p in (Path(__file__).parents[2] / room).rglob("*.py"))
GUARD = "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode"
LEAK = "RuntimeError: We found a fake tensor in the exported program constant's list. This typically means"


class Case(NamedTuple):
    """A failure as it was recorded, with torch 2.13 unless `torch` says otherwise, shortened to what counts."""

    kind: FailureKind
    exception: str
    frames: tuple[str, ...] = ()
    exporter: str = "export"
    op: str | None = None
    torch: str = "2.13"
    custom_ops: tuple[str, ...] | None = None
    made_by: str = ""
    unbacked: int | None = None

    def evidence(self) -> tuple[list[ExceptionFact], list[Frame]]:
        name, _, message = self.exception.partition(": ")
        return [ExceptionFact(type=name, message=message)], [frame(text) for text in self.frames]

    def kind_found(self) -> FailureKind:
        exceptions, frames = self.evidence()
        facts = {"op": self.op, "custom_ops": self.custom_ops, "made_by": self.made_by, "unbacked": self.unbacked}
        return classify(exceptions, frames, exporter=self.exporter, **facts)  # type: ignore[arg-type]


def classify(
    exceptions: Sequence[ExceptionFact],
    frames: Sequence[Frame] = (),
    *,
    stage: Any = "export",
    exporter: str = "export",
    op: str | None = None,
    custom_ops: tuple[str, ...] | None = None,
    made_by: str = "",
    unbacked: int | None = None,
    status: OutcomeStatus = OutcomeStatus.FAILED,
) -> FailureKind:
    failure = Failure(
        stage=stage,
        exceptions=tuple(exceptions),
        frames=tuple(frames),
        op=OpFact(name=op) if op is not None else None,
        custom_ops=custom_ops,
        unbacked=unbacked,
        value_origin=Frame(file="model.py", line=1, function="forward", source=made_by) if made_by else None,
    )
    return kind_of(Outcome(probe="p", status=status, failure=failure), exporter=exporter)


def frame(text: str) -> Frame:
    file, function, source = text.removeprefix("> ").split("|", 2)
    return Frame(file=file, line=1, function=function, source=source, user=text.startswith("> "))


def read_case(told: dict[str, Any]) -> Case:
    facts: dict[str, Any] = {name: tuple(fact) if isinstance(fact, list) else fact for name, fact in told.items()}
    facts["kind"] = FailureKind(told["kind"])
    return Case(**facts)


CASES: tuple[Case, ...] = tuple(map(read_case, yaml.safe_load(Path(__file__).with_name("kind_cases.yaml").read_text())))


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.kind}" for number, case in enumerate(CASES)])
def test_a_recorded_failure_has_its_kind(case: Case) -> None:
    assert case.kind_found() == case.kind


@pytest.mark.parametrize("rule", [*RULES, TRANSLATION, LYING_KERNEL], ids=lambda rule: rule.why)
def test_every_rule_decides_a_recorded_failure(rule: Rule) -> None:
    assert any(rule is deciding(case) for case in CASES)
    assert rule.kind in KINDS


def deciding(case: Case) -> Rule | None:
    """The rule that gave the case its kind."""
    evidence = evidence_of(*case.evidence())
    last = TRANSLATION if case.exporter == "torchscript" else LYING_KERNEL
    facts = {"op": case.op, "made_by": case.made_by, "unbacked": case.unbacked}
    return next((rule for rule in (*RULES, last) if fits(rule, evidence, **facts)), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", KIND_OF_STATUS)
def test_a_process_that_died_has_a_kind_with_and_without_an_exception(status: OutcomeStatus) -> None:
    told = [ExceptionFact(type="SIGSEGV", message="Segmentation fault")]
    assert classify(told, status=status) is KIND_OF_STATUS[status]
    assert kind_of(Outcome(probe="p", status=status, signal="SIGSEGV"), exporter="export") is KIND_OF_STATUS[status]


@pytest.mark.parametrize("exception", KIND_OF_OUR_EXCEPTION)
@pytest.mark.parametrize("stage", ["export", "translate"])
def test_what_we_raise_ourselves_has_its_kind_at_any_stage(exception: str, stage: str) -> None:
    told = [ExceptionFact(type=exception, message="Could not guard on data-dependent expression u0 > 1")]
    assert classify(told, stage=stage) is KIND_OF_OUR_EXCEPTION[exception]


@pytest.mark.parametrize("stage", ["translate", "load", "run", "numbers"])
def test_a_later_stage_is_the_kind(stage: str) -> None:
    told = [ExceptionFact(type="RuntimeError", message="Could not guard on data-dependent expression u0 > 1")]
    assert classify(told, stage=stage) == stage


def test_an_export_that_torch_onnx_started_is_judged_by_its_cause() -> None:
    told = [
        ExceptionFact(type="torch.onnx._internal.exporter._errors.TorchExportError", message="Failed to export"),
        ExceptionFact(type=GUARD, message="Could not guard on data-dependent expression u0 > 1 (unhinted: u0 > 1)."),
    ]
    assert classify(told, stage="translate") == "data_dependent_guard"


def test_values_that_differ_are_no_failed_run() -> None:
    told = [ExceptionFact(type=NUMBERS_DIFFER, message="off by 0.3")]
    assert classify(told, stage="run") == "numbers"


def test_a_kernel_is_accused_only_where_one_from_outside_was_traced() -> None:
    told = [ExceptionFact(type="RuntimeError", message="mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")]

    def kind(custom_ops: tuple[str, ...]) -> FailureKind:
        return classify(told, custom_ops=custom_ops)

    assert kind(("lib.op.default",)) == "wrong_fake_kernel"
    assert kind(()) == "python_error"
    assert classify(told, custom_ops=None) == "python_error", "nobody's kernel was seen"


def test_a_leaked_constant_comes_from_autograd_only_where_the_line_that_made_it_says_so() -> None:
    told = [ExceptionFact(type="RuntimeError", message=LEAK.partition(": ")[2])]
    op = "aten.where.self"
    assert classify(told, op=op) == "python_error"
    assert classify(told, op=op, made_by="return torch.vmap(choose)(x)") == "python_error"
    assert classify(told, op=op, made_by="(step,) = torch.autograd.grad(loss, weight)") == "autograd_state"
    assert classify(told, op="aten.zero_.default", made_by="first = x.data") == "input_mutation"


def test_the_users_own_source_in_a_message_decides_nothing() -> None:
    quoted = (
        'a check failed\n\nfrom user code:\n   File "model.py", line 3, in forward\n    raise ValueError("vmap: no")'
    )
    assert Case(FailureKind.PYTHON_ERROR, f"RuntimeError: {quoted}").kind_found() == "python_error"


def test_frames_outside_of_the_export_call_are_nobodys_culprit() -> None:
    caller = "> notebook.py|<module>|grads = torch.autograd.grad(torch.export.export(model, args), x)"
    entrance = "site-packages/torch/export/__init__.py|export|return _export("
    assert Case(FailureKind.PYTHON_ERROR, LEAK, (caller, entrance)).kind_found() == "python_error"


@pytest.mark.slow
@given(
    name=st.text(max_size=60),
    message=st.text(max_size=400) | st.sampled_from([case.exception for case in CASES]),
    source=st.text(max_size=200),
    user=st.booleans(),
    stage=st.text(max_size=12),
    exporter=st.sampled_from(["export", "export-strict", "torchscript", "another"]),
    op=st.none() | st.text(max_size=20),
)
def test_any_text_has_a_kind(
    name: str, message: str, source: str, user: bool, stage: str, exporter: str, op: str | None
) -> None:
    exceptions, frames = (
        [ExceptionFact(type=name, message=message)],
        [Frame(file=source, line=1, function=name, source=source, user=user)],
    )
    kind = classify(exceptions, frames, stage=stage, exporter=exporter, op=op)
    assert kind in KINDS


STAGES = {"translate", "load", "run", "numbers"}
WORDS = {*KINDS, *OutcomeStatus} - STAGES - {"passed", "failed", "not_applicable"}  # words of other types, too


@pytest.mark.slow
@pytest.mark.parametrize("file", SOURCES, ids=lambda file: "/".join(file.parts[-2:]))
def test_kinds_and_statuses_are_compared_as_members_of_their_enums(file: Path) -> None:
    """As texts they compare with everything, so the type checker could not distinguish `timeout` and `timed_out`."""
    compared = [
        node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Compare | ast.MatchValue)
    ]
    texts = [one.value for node in compared for one in ast.walk(node) if isinstance(one, ast.Constant)]
    assert [text for text in texts if text in WORDS] == []

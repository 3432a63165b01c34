"""What counts as the same bug: the failure without the names of its symbols, its operation and its birth."""

from __future__ import annotations

import pytest

from exportdoctor.core.failure.identity import name_free_signature, outermost_operation
from exportdoctor.core.failure.messages import without_names
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.reduce import Verdict
from exportdoctor.repro.candidates.candidate_judge import judge_outcome
from failing_outcomes import VALUE, failing


def judged(wanted: Outcome, seen: Outcome) -> Verdict:
    signature = name_free_signature(wanted, exporter="export")
    assert signature is not None
    return judge_outcome(signature, seen, exporter="export")


def test_the_same_failure_of_another_symbol_is_the_same_bug() -> None:
    assert judged(failing(VALUE), failing(VALUE.replace("u0", "u17"))) is Verdict.YES


def test_a_pass_is_no_and_another_failure_is_unknown() -> None:
    assert judged(failing(VALUE), Outcome(probe="1", status=OutcomeStatus.PASSED)) is Verdict.NO
    assert judged(failing(VALUE), failing("name 'x' is not defined", kind="NameError")) is Verdict.UNKNOWN
    assert judged(failing(VALUE), Outcome(probe="1", status=OutcomeStatus.TIMED_OUT)) is Verdict.UNKNOWN


def test_another_operation_on_the_symbol_or_another_birth_is_another_bug() -> None:
    assert judged(failing(VALUE), failing(VALUE, expression="[x] * n")) is Verdict.UNKNOWN
    assert judged(failing(VALUE), failing(VALUE, source="int(n)")) is Verdict.UNKNOWN


def test_a_crash_is_the_same_by_its_signal() -> None:
    segfault = Outcome(probe="1", status=OutcomeStatus.CRASHED, signal="SIGSEGV")
    assert judged(segfault, segfault) is Verdict.YES
    assert judged(segfault, Outcome(probe="1", status=OutcomeStatus.CRASHED, signal="SIGABRT")) is Verdict.UNKNOWN


def test_a_message_does_not_depend_on_how_the_user_names_things() -> None:
    one = "Found <class 'fixtures.batch.Batch'> in output, needed by mine::smooth"
    assert without_names(one) == without_names("Found <class '__main__.B'> in output, needed by other::op")
    assert without_names("aten::add failed") != without_names("mine::add failed")


@pytest.mark.parametrize(
    ("expression", "name"),
    [("int(x)", "int"), ("a.tolist()", "tolist"), ("n > 1 and m", "condition"), ("[x] * n", "BinOp"), ("n >", "")],
)
def test_an_expression_is_known_by_its_outermost_operation(expression: str, name: str) -> None:
    assert outermost_operation(expression) == name

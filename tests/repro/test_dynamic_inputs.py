"""A dimension that the model fixes stays dynamic in the script: a static one beside it might fix another."""

from __future__ import annotations

import pytest

from exportdoctor.core.records.outcome import ExceptionFact, Failure, Outcome, OutcomeStatus
from exportdoctor.repro.candidates.dynamic_inputs import makes_one_static, violated_inputs

MESSAGE = "Constraints violated (L['pixels'].size()[0], L['grid'].size()[0])! For more information, run with TORCH_LOGS"


def failed(message: str) -> Outcome:
    fact = ExceptionFact(type="torch._dynamo.exc.UserError", message=message)
    return Outcome(
        probe="p", status=OutcomeStatus.FAILED, seconds=1.0, failure=Failure(stage="export", exceptions=(fact,))
    )


def test_the_violated_inputs_are_those_that_torch_names() -> None:
    assert violated_inputs(failed(MESSAGE)) == {"pixels", "grid"}
    assert violated_inputs(failed("L['pixels'] is something else")) == frozenset()


@pytest.mark.parametrize(
    ("shapes", "static"),
    [
        ("{'pixels': {0: Dim.DYNAMIC}, 'grid': {0: Dim.DYNAMIC}}", False),
        ("{'pixels': {0: Dim.DYNAMIC}}", False),
        ("{'pixels': {0: Dim.DYNAMIC}, 'grid': {}}", True),
        ("{'pixels': {0: Dim.DYNAMIC}, 'grid': None}", True),
        ("{'pixels': {0: Dim.DYNAMIC}, 'mask': {}}", False),
        ("({0: Dim.DYNAMIC}, {})", False),
    ],
)
def test_a_script_that_makes_a_violated_input_static_is_not_the_same_bug(shapes: str, static: bool) -> None:
    source = f"torch.export.export(Model(), (x, y), dynamic_shapes={shapes})"
    assert makes_one_static(source, frozenset({"pixels", "grid"})) is static
    assert not makes_one_static(f"({source}", frozenset({"pixels", "grid"}))

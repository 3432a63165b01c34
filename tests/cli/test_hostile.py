"""What a target, a file or a folder does is told as its fault: the right exit code, one clear line, no hang."""

from __future__ import annotations

import pytest

from hostile import Hostile, cases
from hostile_runs import run_case

CASES = cases()


def _name(case: Hostile) -> str:
    return case.name.encode("ascii", "backslashreplace").decode()


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.often], ids=_name)
def test_a_fault_that_is_not_ours_is_told_as_such(case: Hostile) -> None:
    ended = run_case(case)
    assert not ended.fault(case), ended.err


@pytest.mark.night
@pytest.mark.parametrize("case", [case for case in CASES if not case.often], ids=_name)
def test_no_fault_that_is_not_ours_is_told_otherwise(case: Hostile) -> None:
    ended = run_case(case)
    assert not ended.fault(case), ended.err


def test_no_two_cases_have_one_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)

"""A target that changes torch for everybody is asked as if each attempt were the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanning import scan_file

TARGETS = Path(__file__).parents[1] / "support" / "polluting_targets.py"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("name", "status"), [("memo", "pass"), ("hook", "fails_own"), ("scaled", "pass")])
def test_no_attempt_sees_what_another_left_behind(name: str, status: str) -> None:
    report = scan_file(TARGETS, factory=name, exhaustive=True)
    assert {module.status for module in report.parts[0].modules} == {status}

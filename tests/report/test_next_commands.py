"""The commands at a report's end can be copied."""

from __future__ import annotations

import msgspec

from exportdoctor.core.run.run_state import fold
from exportdoctor.report.canvas import Style
from exportdoctor.report.plain_text import render_end
from synthetic import passing_scan


def test_a_command_is_never_broken() -> None:
    report = fold(tuple(passing_scan())).report()
    python = f"/{'long' * 12}/bin/python"
    report = msgspec.structs.replace(
        report, target=msgspec.structs.replace(report.target, options=("--python", python))
    )
    lines = render_end(report, Style(width=60)).splitlines()
    assert any(line.strip().startswith("exportdoctor export") and python in line for line in lines)

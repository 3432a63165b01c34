"""The report as JSON, `exportdoctor.report/1`: the same bytes as the run's report.json."""

from __future__ import annotations

from exportdoctor.core.codec import pretty
from exportdoctor.core.run.report import Report


def render(report: Report) -> str:
    """Indented JSON with a final newline."""
    return pretty(report).decode()

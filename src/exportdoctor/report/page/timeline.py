"""The attempts of a run on a line of time, those that ran side by side below each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exportdoctor.core.records.outcome import OutcomeStatus
from exportdoctor.report import wording
from exportdoctor.report.page.run_material import Attempt, RunMaterial

_MOST = 1500  # bars; the shortest attempts are left out
_IDLE = 5.0  # seconds without an attempt, after which the line is cut: a run that was resumed


@dataclass(frozen=True)
class Bar:
    """An attempt: its place in percent of the width, the row it stands in, how it ended, what it was."""

    left: float
    width: float
    row: int
    end: str
    title: str


@dataclass(frozen=True)
class Timeline:
    """`seconds` is the length of the line, `rows` its height, `left_out` how many attempts it does not show."""

    bars: tuple[Bar, ...]
    seconds: float
    rows: int
    left_out: int
    longest: tuple[str, ...]


def lay_out(material: RunMaterial) -> Timeline | None:
    """The attempts as bars; None where none ran."""
    longest = sorted(material.attempts, key=lambda attempt: attempt.outcome.seconds, reverse=True)
    shown = sorted(longest[:_MOST], key=lambda attempt: attempt.start)
    if not shown:
        return None
    spans = [(attempt.start, attempt.start + attempt.outcome.seconds) for attempt in shown]
    titles = [(_end(attempt.outcome.status), _describe(attempt)) for attempt in shown]
    if material.build is not None:
        spans.insert(0, material.build)
        titles.insert(0, ("build", f"import and build · {wording.duration(material.build[1] - material.build[0])}"))
    spans, total = _without_gaps(spans)
    free: list[float] = []
    bars = []
    for (start, end), (how, title) in zip(spans, titles, strict=True):
        row = next((number for number, until in enumerate(free) if until <= start + 1e-3), len(free))
        free[row : row + 1] = [end]
        left = min(99.9, max(0.0, 100 * start / total))
        bars.append(Bar(left, max(0.1, min(100 - left, 100 * (end - start) / total)), row, how, title))
    return Timeline(
        tuple(bars), total, len(free), max(0, len(longest) - _MOST), tuple(_describe(each) for each in longest[:5])
    )


def _without_gaps(spans: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], float]:
    """The same spans from zero on, with long idle times cut out, and when the last one ends."""
    shift = busy_until = min(start for start, _ in spans)
    found = []
    for start, end in spans:
        shift += max(0.0, start - busy_until - _IDLE)
        busy_until = max(busy_until, end)
        found.append((max(0.0, start - shift), max(0.0, end - shift)))
    return found, max(0.01, max(end for _, end in found))


def _end(status: OutcomeStatus) -> str:
    if status == OutcomeStatus.PASSED:
        return "pass"
    return "crashed" if status.ended_the_process else "fails_own"


def _describe(attempt: Attempt) -> str:
    probe = attempt.probe
    how = wording.probe_note(probe)
    return " · ".join(
        (
            f"{probe.part}: {wording.module_name(probe.fqn)}{f', {how}' if how else ''}",
            wording.duration(attempt.outcome.seconds),
            attempt.outcome.status.replace("_", " "),
        )
    )

"""A run's folder that was damaged is read as far as it is whole, or refused in one line; it never ends a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exportdoctor.core.codec import encode
from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.run.run_state import fold
from exportdoctor.report import render
from exportdoctor.report.comparison import compare_reports
from exportdoctor.store import journal
from exportdoctor.store.runs import list_runs, read_run
from synthetic import qwen_scan

EVENTS = tuple(qwen_scan())
LINES = [encode(event) for event in EVENTS]
JUNK: st.SearchStrategy[Any] = st.sampled_from(
    (None, True, 0, -1, 10**30, 1e308, "", "x", "\x1b[2J", [], [1], {}, {"a": 1}, [[[]]], "\ud800")
)


@st.composite
def changed_line(draw: st.DrawFn) -> bytes:
    """A line of a run with another value somewhere, or a key that is gone."""
    content = json.loads(draw(st.sampled_from(LINES)))
    holder: Any = content
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
        if isinstance(holder[key], dict | list) and holder[key] and draw(st.booleans()):
            holder = holder[key]
            continue
        if isinstance(holder, dict) and draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = draw(JUNK)
        return json.dumps(content).encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """The bytes of a run's events after something happened to them."""
    lines = list(LINES)
    for _ in range(draw(st.integers(0, 3))):
        lines[draw(st.integers(0, len(lines) - 1))] = draw(st.one_of(changed_line(), st.binary(max_size=40)))
    if draw(st.booleans()):
        lines = [line for line in lines if draw(st.integers(0, 9))]
    data = b"\n".join([*lines, b""])
    if draw(st.booleans()):
        data = data[: draw(st.integers(0, len(data)))]
    if draw(st.booleans()) and data:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at + 1 :]
    return data


def check(folder: Path, data: bytes) -> None:
    run = folder / "20260101-000000-x-aa"
    run.mkdir(exist_ok=True)
    (run / journal.NAME).write_bytes(data)
    assert [one.run for one in list_runs(folder)] == [run.name]
    stored = refusal = None
    try:
        stored = read_run(run)
    except ExportdoctorError as error:
        refusal = error.line()
    if stored is None:
        assert refusal
        assert "\n" not in refusal
        return
    report = stored.state.report()
    for form in ("text", "md", "html", "json", "junit", "sarif"):
        assert render(report, form)
    assert compare_reports(report, fold(EVENTS).report())


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(damaged())
@example(LINES[0] + b'\n{"event": "noted", "text": ' + b"[" * 200_000 + b"\n" + b"\n".join(LINES[1:]) + b"\n")
@example(LINES[0].replace(b"exportdoctor.events", b"\x80xportdoctor.events") + b"\n")
def test_a_damaged_run_is_refused_in_one_line_or_has_a_report(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    check(folder, data)


@pytest.mark.night
@settings(max_examples=5000, deadline=None)
@given(damaged())
def test_many_damaged_runs(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    check(folder, data)

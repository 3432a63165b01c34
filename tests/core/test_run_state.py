"""What the fold of events counts."""

from __future__ import annotations

import msgspec
import pytest

import synthetic
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX
from exportdoctor.core.records.outcome import Agreement, Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.report import SeenCure
from exportdoctor.core.run.run_state import fold
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.report.wording import cost, export_command, verdict


def _asked(name: str, *, answered: bool = True) -> list[ev.AnyEvent]:
    probe = Probe(part="default", fqn=name)
    events: list[ev.AnyEvent] = [ev.ProbeStarted(probe=probe, pid=1)]
    if answered:
        events.append(ev.ProbeFinished(probe=probe, outcome=Outcome(probe=probe.id, status=OutcomeStatus.PASSED)))
    return events


def test_a_resumed_run_counts_what_was_asked_twice_and_what_of_that_was_in_flight() -> None:
    first = [*_asked("a"), *_asked("b", answered=False)]
    right = fold([*first, ev.RunResumed(version="0"), *_asked("b"), *_asked("c")]).report()
    assert (right.stats.asked_twice, right.stats.in_flight) == (1, 1)
    assert "1 made twice (1 ran when the run was cut off)" in cost(right)
    wrong = fold([*first, ev.RunResumed(version="0"), *_asked("a"), *_asked("b"), *_asked("b")]).report()
    assert (wrong.stats.asked_twice, wrong.stats.in_flight) == (2, 1)


def test_a_run_that_was_never_cut_off_asks_nothing_twice() -> None:
    report = fold([*_asked("a"), *_asked("a"), *_asked("b")]).report()
    assert (report.stats.asked_twice, report.stats.in_flight) == (0, 0)
    assert "twice" not in cost(report)


PASSING = ev.PartFinished(part="default", verdict="passes", exporter="export", seconds=1, asked=1)


@pytest.mark.parametrize(
    ("words", "python", "told"),
    [
        (("--python", "lane"), "/lane/bin/python", True),
        (("--python=lane",), "/lane/bin/python", True),
        ((), "/project/.venv/bin/python", False),  # which the next command takes by itself, too
        (("--python", "own"), "", False),
    ],
)
def test_commands_about_the_target_name_the_interpreter_that_was_given(
    words: tuple[str, ...], python: str, *, told: bool
) -> None:
    target, command = TargetRef(ref="model"), ("exportdoctor", "scan", "model", *words)
    started = ev.RunStarted(
        run="run", target=target, options=ScanOptions(), version="0", command=command, python=python
    )
    finding = msgspec.structs.replace(synthetic.WINDOWS, locate="exportdoctor numbers model")
    captured = synthetic.captured({"": "Model"}, part="default")
    report = fold([started, captured, ev.FindingMade(finding=finding), PASSING]).report()
    assert ("--python /lane/bin/python" in export_command(report.parts[0], report)) is told
    assert report.findings[0].locate.endswith("numbers model --python /lane/bin/python" if told else "numbers model")


def _tried(
    *shims: str, status: OutcomeStatus = OutcomeStatus.PASSED, part: str = "default", **more: object
) -> ev.AnyEvent:
    probe = msgspec.structs.replace(Probe(part=part, fqn="", shims=shims, to="run"), **more)
    rows = (Agreement(inputs="example"), Agreement(inputs="drawn", made_up=True, refused=True))
    return ev.ProbeFinished(probe=probe, outcome=Outcome(probe=probe.id, status=status, numbers=rows))


def test_a_run_that_was_cut_off_tells_the_cure_that_its_search_had_seen_and_no_more() -> None:
    begun: list[ev.AnyEvent] = [
        synthetic.started(),
        synthetic.opened(),
        synthetic.captured({"": "Net", "a": "Linear"}, part="default"),
    ]
    small = "default" + SMALL_MODEL_SUFFIX
    useless: list[ev.AnyEvent] = [
        _tried("a", status=OutcomeStatus.FAILED),
        _tried("a", to="ground"),  # exports nothing
        _tried("a", fqn="a"),  # a submodule
        _tried("a", part="another"),
        _tried(),
    ]
    assert fold([*begun, *useless]).report().parts[0].seen_cure is None
    events = [*begun, *useless, _tried("a", "b", part=small), _tried("c"), _tried("b", part=small)]
    report = fold(events).report()
    assert report.parts[0].seen_cure == SeenCure(shims=("b",), compared=1, on_small_model=True)
    told = "; its small model exported with b, with eager's numbers on 1 input set, and the search for a cure had not"
    assert told in verdict(report.parts[0], 0)
    events.append(_tried("b"))
    report = fold(events).report()
    assert report.parts[0].seen_cure == SeenCure(shims=("b",), compared=1)
    assert "; it exported with b, with eager's numbers" in verdict(report.parts[0], 0)
    assert fold([*events, PASSING]).report().parts[0].seen_cure is None

"""Asks a script, a run's findings or a target in each lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exportdoctor.core.run.lane_matrix import LaneAnswer, LaneMatrix, MatrixRow, rows_of
from exportdoctor.lanes.lane import Lane
from exportdoctor.lanes.lane_questions import ask_scan, ask_script, part_answer
from exportdoctor.lanes.question import finding_question
from exportdoctor.store.runs import StoredRun

Tell = Callable[[str], None]


def ask_of_script(name: str, script: str, lanes: Sequence[Lane], tell: Tell) -> LaneMatrix:
    """A user's script is run each time: what it reads is not known. Its row is about the first failure seen."""
    answers = tuple(_tell_answer(tell, name, lane, ask_script(script, lane, keep=False)) for lane in lanes)
    first = next((answer.failures[0] for answer in answers if answer.failures), None)
    return _matrix(name, lanes, rows_of(name, answers, first))


def ask_of_run(run: StoredRun, lanes: Sequence[Lane], tell: Tell) -> LaneMatrix:
    """Each finding by its verified script if that can tell; else by a scan of its submodule."""
    changed = frozenset(name for lane in lanes for name in lane.spec.packages)
    asked = [finding_question(run, finding, changed) for finding in run.state.report().findings]
    rows: tuple[MatrixRow, ...] = ()
    for one in sorted(asked, key=lambda one: not one.script):
        answers = tuple(_tell_answer(tell, one.name, lane, one.small(lane, False)) for lane in lanes)
        rows += rows_of(one.name, answers, one.wanted)
    return _matrix(run.run, lanes, rows)


def ask_of_target(words: tuple[str, ...], lanes: Sequence[Lane], tell: Tell) -> LaneMatrix:
    """The target's parts, with a row for each failure of a part that any lane shows."""
    found = []
    for lane in lanes:
        tell(f"{lane.spec.title}: scanning {words[0]}")
        found.append(ask_scan(words, lane))
    names = dict.fromkeys(part.name for report, _ in found if report for part in report.parts) or {words[0]: None}
    rows: tuple[MatrixRow, ...] = ()
    for name in names:
        answers = tuple(part_answer(report, name) if report else LaneAnswer(unknown=why) for report, why in found)
        rows += rows_of(name, answers)
    return _matrix(words[0], lanes, rows)


def _tell_answer(tell: Tell, name: str, lane: Lane, answer: LaneAnswer) -> LaneAnswer:
    said = answer.unknown or ("; ".join(one.line for one in answer.failures) or "passes")
    tell(f"{lane.spec.title}: {name}: {said}")
    return answer


def _matrix(asked: str, lanes: Sequence[Lane], rows: tuple[MatrixRow, ...]) -> LaneMatrix:
    return LaneMatrix(asked=asked, lanes=tuple(lane.spec.title for lane in lanes), rows=rows)

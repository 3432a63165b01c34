"""Asks a script, a run's findings or a target in each lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.run.events import RunStarted
from exportdoctor.core.run.lane_matrix import LaneAnswer, LaneMatrix, MatrixRow, rows_of
from exportdoctor.lanes.lane import Lane
from exportdoctor.lanes.lane_questions import ask_scan, ask_script, name_of, part_answer
from exportdoctor.store.runs import StoredRun

Tell = Callable[[str], None]


def ask_of_script(name: str, script: str, lanes: Sequence[Lane], tell: Tell) -> LaneMatrix:
    """A user's script is run each time: what it reads is not known. Its row is about the first failure seen."""
    answers = tuple(_tell_answer(tell, name, lane, ask_script(script, lane, keep=False)) for lane in lanes)
    first = next((answer.failures[0] for answer in answers if answer.failures), None)
    return _matrix(name, lanes, rows_of(name, answers, first))


def ask_of_run(run: StoredRun, lanes: Sequence[Lane], tell: Tell) -> LaneMatrix:
    """Each finding by its verified script; by a scan of its submodule where it has none."""
    state = run.state
    rows: tuple[MatrixRow, ...] = ()
    for finding in sorted(state.report().findings, key=lambda one: not _has_script(one)):
        answers = tuple(
            _tell_answer(tell, finding.id, lane, _ask_finding(run, state.started, finding, lane)) for lane in lanes
        )
        rows += rows_of(finding.id, answers, name_of(finding))
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


def _ask_finding(run: StoredRun, started: RunStarted | None, finding: Finding, lane: Lane) -> LaneAnswer:
    if finding.repro is not None and _has_script(finding):
        try:
            script = (run.path / finding.repro.path).read_text(encoding="utf-8")
        except OSError:
            script = ""
        if script:
            return ask_script(script, lane, keep=True)
    if started is None:
        return LaneAnswer(unknown="the run does not say what it scanned")
    build, options = started.target.options, started.options
    words = [started.target.ref, "--part", finding.part, "--exporter", options.exporter, "--to", options.to]
    words += ["--module", finding.module] if finding.module else []
    words += ["--weights", build.weights, "--device", build.device, "--dtype", build.dtype]
    words += ["--image-size", f"{build.image_size[0]}x{build.image_size[1]}"] if build.image_size else []
    words += ["--inputs", build.inputs] if build.inputs else []
    words += ["--static"] if build.static else []
    report, why = ask_scan(tuple(words), lane)
    return part_answer(report, finding.part) if report is not None else LaneAnswer(unknown=why)


def _has_script(finding: Finding) -> bool:
    return finding.repro is not None and finding.repro.verified


def _tell_answer(tell: Tell, name: str, lane: Lane, answer: LaneAnswer) -> LaneAnswer:
    said = answer.unknown or ("; ".join(one.line for one in answer.failures) or "passes")
    tell(f"{lane.spec.title}: {name}: {said}")
    return answer


def _matrix(asked: str, lanes: Sequence[Lane], rows: tuple[MatrixRow, ...]) -> LaneMatrix:
    return LaneMatrix(asked=asked, lanes=tuple(lane.spec.title for lane in lanes), rows=rows)

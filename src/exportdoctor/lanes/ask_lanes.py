"""Asks a script, a run's findings or a target in each lane."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from exportdoctor.core.run.lane_matrix import LaneAnswer, LaneMatrix, MatrixRow, rows_of
from exportdoctor.core.run.report import Report
from exportdoctor.core.versions import installed_versions
from exportdoctor.lanes.ask_in_lane import ask_scan, ask_script, part_answer
from exportdoctor.lanes.lane import Lane
from exportdoctor.lanes.lane_question import finding_question
from exportdoctor.process.group import kill_descendants
from exportdoctor.store.runs import StoredRun

T = TypeVar("T")
R = TypeVar("R")
Tell = Callable[[str], None]
_MB_EACH = 3000


def ask_of_script(name: str, script: str, lanes: Sequence[Lane], tell: Tell, *, jobs: int = 1) -> LaneMatrix:
    """A user's script is run each time: what it reads is not known. Its row is about the first failure seen."""
    ask: Callable[[Lane], LaneAnswer] = lambda lane: _tell_answer(  # noqa: E731
        tell, name, lane, ask_script(script, lane, keep=False)
    )
    answers = tuple(map_side_by_side(ask, lanes, jobs))
    first = next((answer.failures[0] for answer in answers if answer.failures), None)
    return _matrix(name, lanes, rows_of(name, answers, first))


def ask_of_run(run: StoredRun, lanes: Sequence[Lane], tell: Tell, *, jobs: int = 1) -> LaneMatrix:
    """Each finding by its verified script if that can tell; else by a scan of its submodule."""
    report = run.state.report()
    changed = frozenset(name for lane in lanes for name in _packages_changed(report.environment, lane))
    asked = [finding_question(run, finding, changed) for finding in report.findings]
    asked.sort(key=lambda one: not one.script)
    pairs = [(one, lane) for one in asked for lane in lanes]
    found = map_side_by_side(lambda pair: _tell_answer(tell, pair[0].name, pair[1], pair[0].small(pair[1], False)),
                             pairs, jobs)  # fmt: skip
    rows: tuple[MatrixRow, ...] = ()
    for number, one in enumerate(asked):
        rows += rows_of(one.name, tuple(found[number * len(lanes) : (number + 1) * len(lanes)]), one.wanted)
    return _matrix(run.run, lanes, rows)


def ask_of_target(words: tuple[str, ...], lanes: Sequence[Lane], tell: Tell, *, jobs: int = 1) -> LaneMatrix:
    """The target's parts, with a row for each failure of a part that any lane shows."""

    def ask(lane: Lane) -> tuple[Report | None, str]:
        tell(f"{lane.spec.title}: scanning {words[0]}")
        return ask_scan(words, lane)

    found = map_side_by_side(ask, lanes, jobs)
    names = dict.fromkeys(part.name for report, _ in found if report for part in report.parts) or {words[0]: None}
    rows: tuple[MatrixRow, ...] = ()
    for name in names:
        answers = tuple(part_answer(report, name) if report else LaneAnswer(unknown=why) for report, why in found)
        rows += rows_of(name, answers)
    return _matrix(words[0], lanes, rows)


def fitting_jobs(lanes: Sequence[Lane]) -> int:
    """How many lanes may be asked side by side: processors and free memory allow for it."""
    import psutil  # imports late: --help needs none

    return max(1, min(len(lanes), os.cpu_count() or 1, int(psutil.virtual_memory().available / 2**20 / _MB_EACH)))


def map_side_by_side(ask: Callable[[T], R], items: Sequence[T], jobs: int) -> list[R]:
    """The answers in the items' order, `jobs` at a time. What an interruption cuts off is killed."""
    if jobs == 1:
        return [ask(item) for item in items]
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(ask, item) for item in items]
        try:
            return [one.result() for one in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kill_descendants()
            raise


def _packages_changed(before: Mapping[str, str], lane: Lane) -> Iterator[str]:
    """The packages whose versions in the lane are not those of the run's environment, as far as that tells."""
    here = installed_versions(name for name in ("torch", "transformers") if name in before)
    for name, version in {**here, **lane.spec.packages}.items():
        if before.get(name, "").partition("+")[0] != version.partition("+")[0]:
            yield name


def _tell_answer(tell: Tell, name: str, lane: Lane, answer: LaneAnswer) -> LaneAnswer:
    said = answer.unknown or ("; ".join(one.line for one in answer.failures) or "passes")
    tell(f"{lane.spec.title}: {name}: {said}")
    return answer


def _matrix(asked: str, lanes: Sequence[Lane], rows: tuple[MatrixRow, ...]) -> LaneMatrix:
    return LaneMatrix(asked=asked, lanes=tuple(lane.spec.title for lane in lanes), rows=rows)

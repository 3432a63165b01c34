"""The same questions asked in several lanes: a row is a failure, a column a lane. Keys of `matrix --format json`."""

from __future__ import annotations

from typing import Literal

import msgspec

from exportdoctor.core.failure.kinds import HEAVY_EXPORT, SLOW_EXPORT
from exportdoctor.core.failure.messages import first_line, without_names

CellState = Literal["same failure", "other failure", "passes", "unknown"]


class StackLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an installed package; `file` begins with the package's folder."""

    file: str
    line: int


class FailureName(msgspec.Struct, frozen=True, kw_only=True):
    """A failure as other versions show it, too: the class of its exception, or the signal, and its message.

    `stack` are the lines of installed packages that were being run, outermost first.
    """

    exception: str
    message: str
    stack: tuple[StackLine, ...] = ()

    def is_same(self, other: FailureName) -> bool:
        """Whether it is the same failure, though versions differ: modules move, names and numbers change.

        What an export costs is measured: its message says how much, and on what most of it went, which vary.
        """
        return self._identity == other._identity

    @property
    def _identity(self) -> tuple[str, str]:
        measured = self.exception in (SLOW_EXPORT, HEAVY_EXPORT)
        return self.exception.rpartition(".")[2], "" if measured else without_names(self.message)

    @property
    def line(self) -> str:
        """In one line."""
        return ": ".join(filter(None, (self.exception.rpartition(".")[2], first_line(self.message, 160))))


class LaneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a question shows in one lane: its failures, none where it passes; `unknown` says why nothing is known."""

    failures: tuple[FailureName, ...] = ()
    unknown: str = ""

    def cell(self, wanted: FailureName | None) -> Cell:
        """The answer beside the failure that its row is about."""
        if self.unknown:
            return Cell(state="unknown", detail=self.unknown)
        if not self.failures:
            return Cell(state="passes")
        if wanted is not None and any(one.is_same(wanted) for one in self.failures):
            return Cell(state="same failure")
        return Cell(state="other failure", detail=self.failures[0].line)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One answer; `detail` is which other failure, or why it is not known."""

    state: CellState
    detail: str = ""


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True):
    """A question and one failure that it shows somewhere; None if it shows none."""

    name: str
    failure: FailureName | None
    cells: tuple[Cell, ...]


class LaneMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of cells, in the order of `lanes`, the first of which is the environment itself."""

    asked: str
    lanes: tuple[str, ...]
    rows: tuple[MatrixRow, ...]

    @property
    def passes(self) -> bool:
        """Whether every question passes in every lane."""
        return all(cell.state == "passes" for row in self.rows for cell in row.cells)


RetestState = Literal["fixed", "still there", "changed", "unknown"]
_RETEST: dict[CellState, RetestState] = {
    "passes": "fixed",
    "same failure": "still there",
    "other failure": "changed",
    "unknown": "unknown",
}


class RetestRow(msgspec.Struct, frozen=True, kw_only=True):
    """A finding on other versions; `detail` is which other failure, or why it is not known, or where it is fixed, which
    sources have changed since."""

    finding: str
    failure: FailureName | None
    lane: str
    state: RetestState
    detail: str = ""


def retest_of(matrix: LaneMatrix, changed: str = "") -> tuple[RetestRow, ...]:
    """The cells of a run's findings, one by one, by number of the finding. `changed`: which sources have since."""
    rows = [
        RetestRow(
            finding=row.name,
            failure=row.failure,
            lane=lane,
            state=_RETEST[cell.state],
            detail=changed if cell.state == "passes" else cell.detail,
        )
        for row in matrix.rows
        for lane, cell in zip(matrix.lanes, row.cells)
    ]
    return tuple(sorted(rows, key=lambda row: (len(row.finding), row.finding)))


def rows_of(name: str, answers: tuple[LaneAnswer, ...], wanted: FailureName | None = None) -> tuple[MatrixRow, ...]:
    """The rows of a question: one for `wanted`, else one for each distinct failure of any lane."""
    seen: list[FailureName | None] = [wanted] if wanted is not None else []
    for one in (one for answer in answers for one in answer.failures) if wanted is None else ():
        if not any(other is not None and one.is_same(other) for other in seen):
            seen.append(one)
    return tuple(
        MatrixRow(name=name, failure=failure, cells=tuple(answer.cell(failure) for answer in answers))
        for failure in seen or [None]
    )

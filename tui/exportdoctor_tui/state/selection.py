"""The selected row of a part of a run, with the finding on its failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from exportdoctor.core.codec import decode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.protocol.numbers_ladder import LadderResult
from exportdoctor.report.source_lines import Sources
from exportdoctor.store.places import slug

if TYPE_CHECKING:
    from exportdoctor.core.failure.finding import Finding
    from exportdoctor.core.protocol.scan import ModuleFact
    from exportdoctor.core.records.outcome import Frame
    from exportdoctor.core.run.report import ModuleRecord
    from exportdoctor.report.folded_tree import Row
    from exportdoctor_tui.state.run_view import PartView, RunView

TABS = ("story", "stack", "inputs", "graph", "cure", "repro", "log", "explain", "numbers")
TITLES = dict(
    zip(TABS, ("Story", "Stack", "Inputs", "Graph", "Cure", "Repro", "Log", "Explain", "Numbers"), strict=True)
)


def ladder_file(view: RunView, part: str) -> Path:
    """The file in the run's folder with the ladder of a part."""
    return Path(view.path) / "numbers" / f"{slug(part)}.json"


def _time_of(file: Path) -> int:
    """When the file was written; 0 where there is none."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """`finding` is None for a submodule that does not fail."""

    view: RunView
    part: PartView
    row: Row
    finding: Finding | None = None
    sources: Sources = field(default_factory=Sources)
    torch_frames: bool = False

    @property
    def fact(self) -> ModuleFact | None:
        """The first submodule of the row, as it was captured."""
        return self.part.facts.get(self.row.fqns[0])

    @property
    def record(self) -> ModuleRecord | None:
        """Its verdict."""
        return self.part.records.get(self.row.fqns[0])

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The user's frames of the stack; all of them with `torch_frames`, or where none is the user's."""
        stack = self.finding.stack if self.finding else ()
        users = tuple(frame for frame in stack if frame.user)
        return stack if self.torch_frames or not users else users

    @property
    def culprit(self) -> Frame | None:
        """The innermost frame of the user's, else the innermost of all."""
        return next((frame for frame in reversed(self.frames) if frame.user), self.frames[-1] if self.frames else None)

    @property
    def mark(self) -> tuple[object, ...]:
        """All that a page depends on, cheap to compare: equal marks draw equal pages."""
        part = self.part.record
        return (self.row.fqns, self.finding, self.record, self.torch_frames, part.complete, part.prescription,
                len(self.view.findings), _time_of(self.ladder_file))  # fmt: skip

    @property
    def ladder_file(self) -> Path:
        """Where the numbers of this part are kept, once they were compared from here."""
        return ladder_file(self.view, self.part.record.name)

    def ladder(self) -> LadderResult | None:
        """The part's numbers, stage by stage; None where the file holds none."""
        try:
            return decode(self.ladder_file.read_bytes(), LadderResult)
        except (OSError, StoreError):
            return None

    def file(self, name: str) -> Path:
        """A file that a finding names: its absolute path where it exists, else in the run's folder."""
        path = Path(name)
        return path if path.is_absolute() and path.exists() else Path(self.view.path) / path.parent.name / path.name

    def read(self, name: str) -> str:
        """The text of such a file. Raises OSError where it cannot be read."""
        return self.file(name).read_text(encoding="utf-8", errors="replace")

    def tabs(self) -> tuple[str, ...]:
        """The tabs that have content."""
        finding = self.finding
        has = {
            "story": True,
            "stack": bool(finding and finding.stack),
            "inputs": bool(self.fact and self.fact.calls),
            "graph": bool(finding and (finding.slice or finding.slice_note or finding.last_op or finding.origins)),
            "cure": bool(finding and finding.id) or self.part.record.prescription is not None,
            "repro": bool(finding and finding.id),
            "log": bool(finding and finding.log),
            "explain": bool(finding and finding.id),
            "numbers": self.ladder_file.is_file(),
        }
        return tuple(tab for tab in TABS if has[tab])

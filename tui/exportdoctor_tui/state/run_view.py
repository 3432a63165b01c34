"""A run at one moment, as frozen values that the screens draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from exportdoctor.core.failure.finding import ExceptionRecord, Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.run.report import (
    FAILING,
    ModuleRecord,
    ModuleStatus,
    PartRecord,
    Report,
    Stats,
    TargetRecord,
)
from exportdoctor.report import folded_tree, wording
from exportdoctor_tui.state.outline import RowPath, row_paths

if TYPE_CHECKING:
    from exportdoctor.core.protocol.scan import ModuleFact
    from exportdoctor.core.records.probe import Probe
    from exportdoctor.core.run import events as ev
    from exportdoctor.core.run.run_state import PartState
    from exportdoctor.report.folded_tree import Row
    from exportdoctor.store.runs import RunStatus

STAGES = ("export", "decompose", "translate", "load", "run")
_NOTHING, _FREE = TargetRecord(ref=""), Stats()
Answers = Mapping[tuple[str, str], Outcome]


@dataclass(frozen=True, kw_only=True, eq=False)
class PartView:
    """A part: its tree with equal siblings in one row; facts, records and failed attempts by FQN."""

    record: PartRecord
    rows: tuple[Row, ...] = ()
    facts: Mapping[str, ModuleFact] = field(default_factory=dict)
    records: Mapping[str, ModuleRecord] = field(default_factory=dict)
    stages: tuple[str, ...] = ()
    failed: Mapping[str, Outcome] = field(default_factory=dict)
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def row_paths(self) -> tuple[RowPath, ...]:
        """Every row of the tree; computed at the first move from failure to failure."""
        return tuple(row_paths(self.rows))

    @property
    def cured(self) -> bool:
        """Whether the part exports under its prescription."""
        return self.record.complete and self.record.verdict == "cured"

    def look(self, row: Row) -> ModuleStatus:
        """The status to draw for a row: in a cured part, rows that fail are drawn as cured."""
        return "cured" if self.cured and row.status in FAILING else row.status

    @property
    def judged(self) -> int:
        """How many called submodules have a verdict."""
        return sum(1 for module in self.record.modules if module.status not in ("not_asked", "not_called"))


@dataclass(frozen=True, kw_only=True)
class RunningAttempt:
    """An attempt in a worker process. `since`: seconds since the epoch; `how`: what differs from a plain attempt, in
    words; `cures`: it tries shims.
    """

    part: str
    fqn: str
    pid: int
    since: float
    how: str = ""
    cures: bool = False


def running_attempt(probe: Probe, pid: int, since: float) -> RunningAttempt:
    """The attempt at a probe; one on a part's small model is shown as one on the part."""
    return RunningAttempt(
        part=probe.part.removesuffix(SMALL_MODEL_SUFFIX),
        fqn=probe.fqn,
        pid=pid,
        since=since,
        how=wording.probe_note(probe),
        cures=bool(probe.shims),
    )


def is_plain(probe: Probe) -> bool:
    """Whether the probe exports the unchanged module, so that its outcome is the module's own."""
    return not probe.shims and not probe.variant and not probe.part.endswith(SMALL_MODEL_SUFFIX)


@dataclass(frozen=True, kw_only=True, eq=False)
class RunView:
    """A run at one moment. `sets_tried`: of shims; `problem`: why it could not be read further, in one line."""

    run: str = ""
    path: str = ""
    status: RunStatus = "running"
    started: ev.RunStarted | None = None
    finished: ev.RunFinished | None = None
    parts: tuple[PartView, ...] = ()
    findings: Mapping[str, Finding] = field(default_factory=dict)
    target: TargetRecord = _NOTHING
    environment: Mapping[str, str] = field(default_factory=dict)
    stats: Stats = _FREE
    attempts: tuple[RunningAttempt, ...] = ()
    sets_tried: int = 0
    step: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def headline(self) -> tuple[str, ...]:
        """The pieces of the first line of a report."""
        return wording.headline(Report(run=self.run, target=self.target, environment=dict(self.environment)))

    def part(self, name: str) -> PartView | None:
        """The part of that name, else the first part; None before any part is captured."""
        return next((part for part in self.parts if part.record.name == name), self.parts[0] if self.parts else None)


def part_view(state: PartState, failed: Answers, findings: Mapping[str, Finding]) -> PartView:
    """The view of one part. `failed`: the failed plain attempts of all parts, by part and FQN; `findings` by id."""
    record = state.record(findings)
    name = record.name
    asked = {stage for module in record.modules for stage in module.stages}
    return PartView(
        record=record,
        rows=folded_tree.group_siblings(record),
        facts={fact.fqn: fact for fact in state.captured.modules},
        records={module.fqn: module for module in record.modules},
        stages=tuple(stage for stage in STAGES if stage in asked) or STAGES[:1],
        failed={fqn: outcome for (part, fqn), outcome in failed.items() if part == name},
        axes=state.captured.axes,
    )


def finding_for(view: RunView, part: PartView, row: Row) -> Finding | None:
    """The finding of a row; while its part is being scanned, a provisional one from its failed attempt."""
    known = view.findings.get(row.finding) if row.finding else None
    if known is not None:
        return known
    for fqn in row.fqns:
        record = part.records.get(fqn)
        for name in (fqn, record.same_as if record else None):
            outcome = part.failed.get(name) if name is not None else None
            if outcome is not None and row.notable:
                return provisional(part.record.name, row, outcome)
    return None


def provisional(part: str, row: Row, outcome: Outcome) -> Finding:
    """A finding without an id, from one attempt; its explanation says that the diagnosis follows."""
    failure = outcome.failure
    culprit = failure.culprit if failure else None
    first = failure.exceptions[0] if failure and failure.exceptions else None
    signature = signature_of(outcome)
    return Finding(
        id="",
        part=part,
        module=(failure.deepest_module if failure else None) or row.fqns[0],
        module_class=row.class_name,
        own_code=row.status == "fails_own",
        function=culprit.function if culprit else None,
        file=culprit.file if culprit else None,
        line=culprit.line if culprit else None,
        source=culprit.source if culprit else None,
        kind=FailureKind.PYTHON_ERROR,
        op=None,
        expression=culprit.expression if culprit else None,
        signature=signature.key if signature else "",
        exception=ExceptionRecord(
            type=first.type if first else outcome.status, message=first.message if first else outcome.signal or ""
        ),
        stack=failure.frames if failure else (),
        explanation="The diagnosis follows when the part is finished.",
        origins=failure.origins if failure else (),
        last_op=failure.op if failure else None,
        modules=row.fqns,
        log=outcome.log,
    )

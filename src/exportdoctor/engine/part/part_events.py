"""What is told of a part as its scan goes on: findings, whose failure each is, and the part's verdict in the end.

A finding is told again whenever more is known of it; nothing is told twice unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from exportdoctor.core import events as ev
from exportdoctor.core.failure.identity import same_failure
from exportdoctor.core.finding import Finding, ShimTry
from exportdoctor.core.outcome import Outcome
from exportdoctor.engine.part.state import Chart
from exportdoctor.engine.verdicts.diagnose import make_finding
from exportdoctor.engine.verdicts.failure_groups import FailureGroup
from exportdoctor.engine.verdicts.judge import Verdict, verdict_of_part


@dataclass
class Telling:
    """Tells what `chart` says, and remembers what was told."""

    chart: Chart
    _ids: dict[tuple[str, ...], str] = field(default_factory=dict)
    _findings: dict[str, Finding] = field(default_factory=dict)
    _verdicts: dict[str, ev.ModuleJudged] = field(default_factory=dict)

    def judged(self, verdict: Verdict) -> ev.ModuleJudged:
        """A module's verdict as an event."""
        return ev.ModuleJudged(
            part=self.chart.captured.part,
            fqns=(verdict.fqn,),
            status=verdict.status,
            evidence="asked" if verdict.asked_itself else "equal",
            same_as=verdict.same_as,
            stages=verdict.outcome.stages,
            seconds=round(verdict.seconds, 4) if verdict.asked_itself else 0.0,
            note=self.chart.ladder.notes.get(verdict.fqn, ""),
        )

    def new_findings(self, numbers: Iterator[int]) -> Iterator[ev.AnyEvent]:
        """The findings that are new or have changed, numbered as they are met, and whose failure each is."""
        known = self.chart.diseases()
        for case in known:  # all of them have a name before one is told, for it may name another
            if case.key not in self._ids:
                self._ids[case.key] = f"F{next(numbers)}"
        for case in known:
            finding = self._finding(case, self._ids[case.key])
            if self._findings.get(finding.id) != finding:
                self._findings[finding.id] = finding
                yield ev.FindingMade(finding=finding)
            for verdict in self._of_modules_as_they_are(case):
                judged = msgspec.structs.replace(self.judged(verdict), finding=finding.id)
                if self._verdicts.get(verdict.fqn) != judged:
                    self._verdicts[verdict.fqn] = judged
                    yield judged

    def _of_modules_as_they_are(self, case: FailureGroup) -> list[Verdict]:
        """The case's verdicts that are of modules as they are."""
        return [] if self._met_behind(case) else self.chart.ladder.telling(case)

    def _met_behind(self, case: FailureGroup) -> bool:
        """Whether only the search for a cure met it."""
        met = self.chart.cure.prescriber.hidden() if self.chart.cure is not None else []
        return any(case.leading().outcome is outcome for outcome in met)

    def _finding(self, case: FailureGroup, name: str) -> Finding:
        finding = make_finding(
            case,
            name=name,
            part=self.chart.captured.part,
            exporter=self.chart.options.exporter,
            classes=self.chart.classes,
            passing={fqn for fqn, verdict in self.chart.verdicts.items() if not verdict.failing},
            dynamic=self.chart.ladder.dynamic,
            versions=self.chart.versions,
        )
        if self._met_behind(case):
            finding = msgspec.structs.replace(finding, behind=self._id_of(self.chart.captured.prefix))
        finding = self.chart.ladder.told(case, finding, hidden_by=self._id_of(case.leading().fqn))
        return msgspec.structs.replace(finding, shims_tried=self._tried(case))

    def _tried(self, case: FailureGroup) -> tuple[ShimTry, ...]:
        """What each shim did that was tried where this was the failure."""
        if self.chart.cure is None:
            return ()
        exporter, shown = self.chart.options.exporter, case.leading().outcome
        tries = (
            ShimTry(
                shim="+".join(trial.shims),
                result=trial.result,
                next=self._id_of_failure(trial.outcome) if trial.result == "moved" else None,
                note=trial.note,
            )
            for trial in self.chart.cure.prescriber.trials
            if same_failure(trial.before, shown, exporter=exporter)
        )
        return tuple({(one.shim, one.result): one for one in tries}.values())

    def _id_of_failure(self, outcome: Outcome) -> str | None:
        exporter = self.chart.options.exporter
        found = (
            case for case in self.chart.diseases() if same_failure(outcome, case.leading().outcome, exporter=exporter)
        )
        return next((self._ids.get(case.key) for case in found), None)

    def _id_of(self, fqn: str) -> str | None:
        """The finding that a module fails with, exported as it is."""
        answer = self.chart.verdicts[fqn].deciding
        found = (case for case in self.chart.diseases() if any(verdict.deciding is answer for verdict in case.verdicts))
        return next((self._ids.get(case.key) for case in found), None)

    def conclude(self) -> Iterator[ev.AnyEvent]:
        """The part's verdict."""
        prescriber = self.chart.cure.prescriber if self.chart.cure is not None else None
        verdict = verdict_of_part(self.chart.root)
        if self.chart.options.modules:
            verdict = "fails" if self.chart.failing else "passes"
        if prescriber is not None and prescriber.prescription is not None and not prescriber.note:
            verdict = "cured"
        elif prescriber is not None:
            yield ev.Noted(text=f"{self.chart.captured.part}: {prescriber.note}")
        yield ev.PartFinished(
            part=self.chart.captured.part,
            verdict=verdict,
            exporter=self.chart.options.exporter,
            seconds=round(time.monotonic() - self.chart.started, 3),
            asked=self.chart.asked,
            prescription=prescriber.prescription if prescriber is not None else None,
            only=tuple(fqn for fqn in self.chart.options.modules if fqn in self.chart.facts),
        )

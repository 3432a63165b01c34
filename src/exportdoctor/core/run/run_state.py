"""Folds events: what is known of a run after any prefix of its stream, and the report of it.

Folding is deterministic and never raises on a decoded event, so that a run that was cut off still has a report.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from exportdoctor.core.errors import ExitCode
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX, Captured, ModuleFact, Opened
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.report import (
    FAILING,
    ModuleRecord,
    ModuleStatus,
    PartRecord,
    Report,
    SeenCure,
    Stats,
    TargetRecord,
)


@dataclass
class PartState:
    """A part while its run goes on."""

    captured: Captured
    judged: dict[str, ev.ModuleJudged] = field(default_factory=dict)
    named: dict[str, dict[str, None]] = field(default_factory=dict)
    """The findings with which each submodule was judged to fail, in their order."""
    finished: ev.PartFinished | None = None
    seen_cure: SeenCure | None = None
    """The first set of shims with which its root was seen to pass, or fewer of these."""

    def note_try(self, probe: Probe, outcome: Outcome) -> None:
        """Keep what is known of a cure while it is sought."""
        if not outcome.passed or not probe.shims or probe.to == "ground" or probe.fqn != self.captured.prefix:
            return
        numbers = sum(row.holds and not row.refused and not row.says_nothing for row in outcome.numbers)
        small = probe.part.endswith(SMALL_MODEL_SUFFIX)
        seen, known = SeenCure(shims=probe.shims, compared=numbers, on_small_model=small), self.seen_cure
        if known is None or set(seen.shims) < set(known.shims):
            self.seen_cure = seen
        elif seen.shims == known.shims:
            self.seen_cure = SeenCure(
                shims=known.shims,
                compared=max(known.compared, numbers),
                on_small_model=known.on_small_model and small,
            )

    def judge(self, event: ev.ModuleJudged) -> None:
        """Keep a verdict; one of a failure may come once for each of its findings."""
        self.judged.update(dict.fromkeys(event.fqns, event))
        for fqn in event.fqns:
            if event.finding is None:
                self.named.pop(fqn, None)
            else:
                self.named.setdefault(fqn, {})[event.finding] = None

    def record(self, findings: Mapping[str, Finding]) -> PartRecord:
        """The part as the report has it."""
        asked = {fact.fqn: fact.at_fixed_sizes for fact in self.captured.modules if self._is_asked(fact.fqn)}
        modules = tuple(
            _module_record(
                fact,
                self.judged.get(fact.fqn),
                fixed=_of_nearest(fact.fqn, asked),
                named=self._findings_of(fact.fqn, findings),
            )
            for fact in self.captured.modules
        )
        failing = any(module.status in FAILING for module in modules)
        done = self.finished
        return PartRecord(
            name=self.captured.part,
            title=self.captured.title,
            verdict=done.verdict if done else ("fails" if failing else "passes"),
            exporter=done.exporter if done else "export",
            seconds=done.seconds if done else 0.0,
            asked=done.asked if done else 0,
            called=sum(1 for module in modules if module.status != "not_called"),
            prescription=done.prescription if done else None,
            modules=modules,
            complete=done is not None,
            only=done.only if done else (),
            registered=self.captured.registered,
            unnamed_inputs=self.captured.unnamed_inputs,
            audit=done.audit if done else None,
            numbers=done.numbers if done else None,
            lost_writes=done.lost_writes if done else (),
            is_random=done is not None and done.is_random,
            seen_cure=None if done else self.seen_cure,
        )

    def _findings_of(self, fqn: str, findings: Mapping[str, Finding]) -> list[str]:
        """Those of its findings that still have it among their modules."""
        return [name for name in self.named.get(fqn, ()) if name in findings and fqn in findings[name].modules]

    def _is_asked(self, fqn: str) -> bool:
        return fqn in self.judged and self.judged[fqn].evidence in ("asked", "equal")


def _of_nearest(fqn: str, values: Mapping[str, str]) -> str:
    """The value of this module, or of the nearest one that it lies in."""
    while fqn not in values and fqn:
        fqn = fqn.rpartition(".")[0]
    return values.get(fqn, "")


@dataclass
class RunState:
    """A run so far. `apply` is the fold's step; the rest are views.

    `answered` and `in_flight` are the probes that had an answer, or ran, when the run was last resumed; `shim_sets` the
    sets of shims that were tried, with the part.
    """

    started: ev.RunStarted | None = None
    opened: Opened | None = None
    parts: dict[str, PartState] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    running: dict[str, tuple[Probe, int, float]] = field(default_factory=dict)
    answers: dict[str, Outcome] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    step: str = ""
    finished: ev.RunFinished | None = None
    cached: int = 0
    answered: frozenset[str] = frozenset()
    in_flight: frozenset[str] = frozenset()
    asked_twice: set[str] = field(default_factory=set)
    shim_sets: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    events: int = 0
    last_at: float = 0.0

    def apply(self, event: ev.AnyEvent) -> RunState:
        """Take one event in; returns self."""
        self.events += 1
        self.last_at = event.at or self.last_at
        match event:
            case ev.RunStarted():
                self.started = event
            case ev.RunResumed():
                self.finished = None
                self.answered = frozenset(self.answers)
                self.in_flight |= self.running.keys() - self.answered
                self.running.clear()
            case ev.StepStarted(text=text):
                self.step = text
            case ev.TargetOpened(opened=opened):
                self.opened = opened
            case ev.PartCaptured(captured=captured):
                old = self.parts.get(captured.part)
                self.parts[captured.part] = PartState(
                    captured, dict(old.judged) if old else {}, seen_cure=old.seen_cure if old else None
                )
            case ev.ProbeStarted(probe=probe, pid=pid, at=at):
                self.running[probe.id] = (probe, pid, at)
                if probe.id in self.answered or probe.id in self.in_flight:
                    self.asked_twice.add(probe.id)
            case ev.ProbeFinished(probe=probe, outcome=outcome, cached=cached):
                self.running.pop(probe.id, None)
                self.answers[probe.id] = outcome
                if probe.shims:
                    part = probe.part.removesuffix(SMALL_MODEL_SUFFIX)
                    self.shim_sets.add((part, probe.shims))
                    if part in self.parts:
                        self.parts[part].note_try(probe, outcome)
                self.cached += cached
            case ev.ModuleJudged(part=part):
                if part in self.parts:
                    self.parts[part].judge(event)
            case ev.FindingMade(finding=finding):
                self.findings[finding.id] = self._locate_under_python(finding)
            case ev.PartFinished(part=part):
                if part in self.parts:
                    self.parts[part].finished = event
            case ev.NoteAdded(text=text):
                if text not in self.notes:
                    self.notes.append(text)
            case ev.RunFinished():
                self.finished = event
                self.running.clear()
        return self

    def _locate_under_python(self, finding: Finding) -> Finding:
        """With the interpreter that was given in the command that locates it, if there is one."""
        python = _given_python(self.started)
        if not finding.locate or not python:
            return finding
        return msgspec.structs.replace(finding, locate=f"{finding.locate} {shlex.join(python)}")

    def report(self) -> Report:
        """The report of what is known now."""
        parts = tuple(part.record(self.findings) for part in self.parts.values())
        started, opened, done = self.started, self.opened, self.finished
        equal = sum(1 for part in parts for module in part.modules if module.evidence in {"equal", "parent"})
        return Report(
            run=started.run if started else "",
            target=TargetRecord(
                ref=started.target.ref if started else "",
                options=_options_of(started) if started else (),
                in_memory=started is not None and not started.command,
                weights=opened.weights if opened else "",
                device=opened.device if opened else "",
                dtype=opened.dtype if opened else "",
                parameters=opened.parameters if opened else 0,
                modules=max((len(part.modules) for part in parts), default=0),
            ),
            environment=opened.environment if opened else {},
            parts=parts,
            findings=tuple(self.findings.values()),
            stats=Stats(
                probes=len(self.answers),
                answered_by_equality=equal,
                seconds=done.seconds if done else max(0.0, self.last_at - (started.at if started else 0.0)),
                peak_rss_mb=done.peak_rss_mb if done else 0.0,
                answered_from_cache=self.cached,
                asked_twice=len(self.asked_twice),
                in_flight=len(self.asked_twice & self.in_flight),
            ),
            complete=bool(done and done.complete),
            error=(done.error or "") if done and done.exit_code in (ExitCode.USAGE, ExitCode.TARGET) else "",
            notes=tuple(self.notes),
        )


def _module_record(
    fact: ModuleFact, judged: ev.ModuleJudged | None, *, fixed: str, named: Sequence[str]
) -> ModuleRecord:
    """A module's row; one that was called and not judged yet has not been asked. `named` are its findings."""
    fqn, class_name, calls = fact.fqn, fact.class_name, len(fact.calls)
    if judged is None:
        status: ModuleStatus = "not_asked" if calls else "unknown" if fact.scripted else "not_called"
        return ModuleRecord(fqn=fqn, class_name=class_name, status=status, calls=calls)
    return ModuleRecord(
        fqn=fqn,
        class_name=class_name,
        status=judged.status,
        same_as=judged.same_as,
        stages=judged.stages,
        seconds=judged.seconds,
        finding=named[0] if named else judged.finding,
        also=tuple(named[1:]),
        evidence=judged.evidence,
        calls=calls,
        note=judged.note,
        at_fixed_sizes=fixed,
    )


def fold(events: list[ev.AnyEvent] | tuple[ev.AnyEvent, ...]) -> RunState:
    """The state after all of `events`."""
    state = RunState()
    for event in events:
        state.apply(event)
    return state


def _options_of(started: ev.RunStarted) -> tuple[str, ...]:
    """The options with which another command builds the same target, under the interpreter that was given."""
    return (*started.target.options.flags, *_given_python(started))


def _given_python(started: ev.RunStarted | None) -> tuple[str, ...]:
    if started is None or not started.python:
        return ()
    return ("--python", started.python) if any(w.partition("=")[0] == "--python" for w in started.command) else ()

"""A part's diagnosis as events: verdicts, findings with whose failure each is, and in the end the part's verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.finding import Finding, ShimTry
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.report import AuditRecord
from exportdoctor.engine.cure.trial import ShimTrial
from exportdoctor.engine.part.part_diagnosis import PartDiagnosis
from exportdoctor.engine.verdicts.diagnose import make_finding
from exportdoctor.engine.verdicts.failure_groups import FailureGroup
from exportdoctor.engine.verdicts.judge import ModuleVerdict, verdict_of_part
from exportdoctor.report.wording.cures import numbers_notes
from exportdoctor.report.wording.export import (
    CHOOSES_AMONG_EQUALS,
    OTHER_RANDOM_NUMBERS,
    lost_writes_note,
    numbers_command,
)
from exportdoctor.report.wording.scan import unknown_notes
from exportdoctor.report.wording.shim_tries import next_failure_note, rest_note

Groups = list[FailureGroup]


def module_judged(part: PartDiagnosis, verdict: ModuleVerdict) -> ev.ModuleJudged:
    """A module's verdict."""
    return ev.ModuleJudged(
        part=part.name,
        fqns=(verdict.fqn,),
        status=verdict.status,
        evidence="asked" if verdict.asked_itself else "equal",
        same_as=verdict.same_as,
        stages=verdict.outcome.stages,
        seconds=round(verdict.seconds, 4) if verdict.asked_itself else 0.0,
        note=part.notes.get(verdict.fqn, ""),
    )


def passing_inside(part: PartDiagnosis, verdict: ModuleVerdict, fqns: tuple[str, ...]) -> ev.ModuleJudged:
    """Modules that pass because one that they are inside of passes."""
    return ev.ModuleJudged(
        part=part.name, fqns=fqns, status="pass", evidence="parent", same_as=None, stages=verdict.outcome.stages
    )


def findings_and_verdicts(part: PartDiagnosis, known: Groups) -> Iterator[ev.FindingMade | ev.ModuleJudged]:
    """The finding of each of the `known` failures, which all have their ids, and the verdicts of its modules."""
    passing = {fqn for fqn, one in part.verdicts.items() if one.outcome.passed and not part.facts[fqn].at_fixed_sizes}
    for group in known:
        finding = _make_finding(part, group, known, passing)
        yield ev.FindingMade(finding=finding)
        for verdict in () if part.is_hidden(group) else part.standing_verdicts(group):
            yield msgspec.structs.replace(module_judged(part, verdict), finding=finding.id)


def part_finished(part: PartDiagnosis, audit: AuditRecord | None) -> Iterator[ev.AnyEvent]:
    """The part's verdict, and why a search for a cure found none."""
    for text in unknown_notes(part.name, [(one.fqn, one.outcome) for one in part.unknown]):
        yield ev.NoteAdded(text=text)
    for text in numbers_notes(part.name, part.numbers) if part.numbers is not None else ():
        yield ev.NoteAdded(text=text)
    cure = part.cure
    verdict = verdict_of_part(part.root)
    if part.options.modules:
        verdict = "fails" if part.failing else "unknown" if part.unknown else "passes"
    if cure is not None and cure.prescription is not None and not cure.note:
        verdict = "cured"
    elif cure is not None:
        yield ev.NoteAdded(text=f"{part.name}: {cure.note}")
    passing = cure.passing if cure is not None else part.root.outcome if part.root is not None else None
    lost = passing.lost_writes if passing is not None else ()
    if lost:
        yield ev.NoteAdded(text=f"{part.name}: {lost_writes_note(lost)}")
    is_random = passing is not None and passing.is_random
    if is_random:
        yield ev.NoteAdded(text=f"{part.name}: ONNX Runtime's numbers were not compared: {OTHER_RANDOM_NUMBERS}")
    if passing is not None and passing.is_tied:
        yield ev.NoteAdded(text=f"{part.name}, ONNX Runtime: {CHOOSES_AMONG_EQUALS}")
    yield ev.PartFinished(
        part=part.name,
        verdict=verdict,
        exporter=part.options.exporter,
        seconds=round(time.monotonic() - part.started, 3),
        asked=part.asked,
        prescription=cure.prescription if cure is not None else None,
        only=tuple(fqn for fqn in part.options.modules if fqn in part.facts),
        audit=audit,
        numbers=part.numbers,
        lost_writes=lost,
        is_random=is_random,
    )


def _make_finding(part: PartDiagnosis, group: FailureGroup, known: Groups, passing: set[str]) -> Finding:
    finding = make_finding(
        group,
        name=part.ids[group.key],
        part=part.name,
        exporter=part.options.exporter,
        classes={fact.fqn: fact.class_name for fact in part.captured.modules},
        passing=passing,
        dynamic=part.dynamic,
        versions=part.versions,
    )
    found = part.dimensions.get(group.key)
    if found is not None:
        finding = msgspec.structs.replace(
            finding, dimensions=found.failing, dimensions_passing=found.passing, dimensions_also=found.others
        )
    if part.has_wrong_numbers(group.leading_verdict):
        finding = msgspec.structs.replace(finding, known_issues=())
    if finding.kind is FailureKind.NUMBERS and EXPORTERS[part.options.exporter].makes_program:
        finding = msgspec.structs.replace(finding, locate=numbers_command(part.name, part.target))
    behind, tried = _behind(part, group, known), _shims_tried(part, group, known)
    with_stand_ins = part.is_met_with_stand_ins(group)
    behind = None if with_stand_ins else behind
    alone = behind is None and not with_stand_ins and part.is_met_alone(group)
    return msgspec.structs.replace(
        finding, behind=behind, shims_tried=tried, only_alone=alone, with_stand_ins=with_stand_ins
    )


def _behind(part: PartDiagnosis, group: FailureGroup, known: Groups) -> str | None:
    """The finding that hides this one: its module's own, exported as it is, or the root's. None if that is this one."""
    if part.is_of_own_code(group.leading_verdict):
        found = _finding_of_module(part, group.leading_verdict.fqn, known)
    else:
        found = _finding_of_module(part, part.captured.prefix, known) if part.is_hidden(group) else None
    return found if found != part.ids.get(group.key) else None


def _shims_tried(part: PartDiagnosis, group: FailureGroup, known: Groups) -> tuple[ShimTry, ...]:
    """What each shim did that was tried where this was the failure."""
    tries = (
        _shim_try(part, trial, known, told_in=part.ids.get(group.key))
        for trial in (part.cure.trials if part.cure is not None else ())
        if part.same_failure(trial.before, group.leading_verdict.outcome)
    )
    return tuple({(one.shim, one.result): one for one in tries}.values())


def _shim_try(part: PartDiagnosis, trial: ShimTrial, known: Groups, *, told_in: str | None) -> ShimTry:
    """A try in the report of a finding.

    What fails next is a note where it is no finding, as only what was fixed shows it, or no other one: a failure of two
    dimensions is followed by that of the second.
    """
    shim, result, note = "+".join(trial.shims), trial.result, trial.note
    if result != "moved":
        return ShimTry(shim=shim, result=result, note=note)
    following = _finding_of_failure(part, trial.outcome, known)
    if following is None:
        return ShimTry(shim=shim, result=result, note=note or next_failure_note(trial.outcome))
    if following == told_in:
        return ShimTry(shim=shim, result=result, note=rest_note(trial.before, trial.outcome))
    return ShimTry(shim=shim, result=result, next=following, note=note)


def _finding_of_failure(part: PartDiagnosis, outcome: Outcome, known: Groups) -> str | None:
    found = (group for group in known if part.same_failure(outcome, group.leading_verdict.outcome))
    return next((part.ids.get(group.key) for group in found), None)


def _finding_of_module(part: PartDiagnosis, fqn: str, known: Groups) -> str | None:
    """The finding that a module fails with, exported as it is."""
    answer = part.verdicts[fqn].deciding
    found = (group for group in known if any(verdict.deciding is answer for verdict in group.verdicts))
    return next((part.ids.get(group.key) for group in found), None)

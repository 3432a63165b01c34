"""Follow-up probes, made of a part's failures once every module has its verdict.

First each failing parent with its submodules replaced, which shows failures of its own that one of them had hidden;
then, for each failure, which dimensions must be dynamic. A part without failures has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.classify import kind_of
from exportdoctor.core.protocol.scan import CallFact
from exportdoctor.core.records.outcome import OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.engine.call_tree import CallSite
from exportdoctor.engine.part.dimensions import smallest_dimensions
from exportdoctor.engine.part.part_diagnosis import PartDiagnosis
from exportdoctor.engine.probe_driver import ProbeSteps
from exportdoctor.engine.verdicts.failure_groups import FailureGroup
from exportdoctor.engine.verdicts.judge import ModuleVerdict, SiteOutcome, judge, shows_same_failure
from exportdoctor.report.wording.shim_tries import NEVER_RAN, NO_OPAQUE_OPERATOR, kept_submodules_note, no_opaque_note

_OF_DIMENSIONS = frozenset({OutcomeStatus.FAILED, OutcomeStatus.TIMED_OUT})


class FollowUps:
    """Gives out generators of follow-up probes, each once; what they find goes into `diagnosis`.

    `template` is a probe of the part, `fact` gives a call site's call.
    """

    def __init__(self, diagnosis: PartDiagnosis, template: Probe, fact: Callable[[CallSite], CallFact]) -> None:
        self.diagnosis = diagnosis
        self.template = template
        self.fact = fact
        self._searched: set[tuple[str, ...]] = set()

    def own_code_steps(self) -> Iterator[ProbeSteps[None]]:
        """For each module that fails through a submodule: does its own code fail too?"""
        for verdict in self.diagnosis.placed_verdicts():
            failure = verdict.outcome.failure
            if verdict.blamed_module == verdict.fqn or (failure is not None and failure.stage != "export"):
                continue
            if EXPORTERS[self.template.exporter].takes_opaque_submodules:
                yield self._own_code(verdict)
            else:
                self.diagnosis.notes[verdict.fqn] = NO_OPAQUE_OPERATOR

    def dimension_steps(self) -> Iterator[ProbeSteps[None]]:
        """For each failure that is new since the last call: which dimensions must be dynamic?"""
        for group in self.diagnosis.shown_failures() if self.diagnosis.dynamic else ():
            leading = group.leading_verdict
            if leading.outcome.status not in _OF_DIMENSIONS or self.diagnosis.has_wrong_numbers(leading):
                continue
            if group.key not in self._searched:
                self._searched.add(group.key)
                yield self._dimensions(group)

    def _own_code(self, verdict: ModuleVerdict) -> ProbeSteps[None]:
        site, notes = verdict.deciding.asked, self.diagnosis.notes
        outcome = yield self._probe(site, opaque=True)
        if outcome.status == OutcomeStatus.NOT_APPLICABLE:
            notes[verdict.fqn] = no_opaque_note(outcome)
            return
        found = judge(verdict.fqn, ((site, SiteOutcome(site, outcome)),))
        kind = kind_of(outcome, exporter=self.template.exporter)
        if not kind.is_of_the_call and _ends_before_forward(found) and shows_same_failure(verdict, found):
            notes[verdict.fqn] = NEVER_RAN
            return
        if outcome.kept_children:
            notes[verdict.fqn] = kept_submodules_note(outcome)
        if found.failing and found.blamed_module == verdict.fqn:
            self.diagnosis.own_code[verdict.fqn] = found

    def _dimensions(self, group: FailureGroup) -> ProbeSteps[None]:
        leading = group.leading_verdict
        site = leading.deciding.asked
        probe = self._probe(site, opaque=self.diagnosis.is_of_own_code(leading))
        self.diagnosis.dimensions[group.key] = yield from smallest_dimensions(probe, self.fact(site), leading.outcome)

    def _probe(self, site: CallSite, *, opaque: bool) -> Probe:
        # an opaque operator can be exported and not translated
        to = "export" if opaque else self.template.to
        return msgspec.structs.replace(self.template, fqn=site.fqn, call=site.call, opaque=opaque, to=to)


def _ends_before_forward(verdict: ModuleVerdict) -> bool:
    """Whether nothing had been traced: what is refused then may belong to a submodule that was replaced."""
    failure = verdict.outcome.failure
    return failure is not None and not failure.traced and not verdict.located

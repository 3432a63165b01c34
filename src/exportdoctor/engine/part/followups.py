"""What is asked of a part's failures once every module has its verdict: down the ladder, rung by rung.

First each failing parent with its children replaced, which shows failures of its own that a child's had hidden; then,
for each finding, which dimensions must be dynamic. A part without failures asks nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.finding import Finding
from exportdoctor.core.outcome import Outcome, OutcomeStatus
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol.scan import CallFact
from exportdoctor.engine.part.dimensions import Dimensions, smallest_dimensions
from exportdoctor.engine.part.questions import Answer, CallSite
from exportdoctor.engine.verdicts.judge import Verdict, judge
from exportdoctor.engine.verdicts.localise import Case

Rung = Generator[Probe, Outcome, None]


@dataclass
class FollowUps:
    """Feed it outcomes with `answered`; it yields the probes that are needed next. `fact` tells a place's call.

    `dynamic`: the part has dynamic dimensions.
    """

    template: Probe
    fact: Callable[[CallSite], CallFact]
    dynamic: bool
    dimensions: dict[tuple[str, ...], Dimensions] = field(default_factory=dict)
    own: dict[str, Verdict] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    _waiting: dict[str, list[Rung]] = field(default_factory=dict)
    _known: dict[str, Outcome] = field(default_factory=dict)
    _begun: set[object] = field(default_factory=set)

    def awaits(self, outcome: Outcome) -> bool:
        """Whether it was asked here."""
        return outcome.probe in self._waiting

    def answered(self, outcome: Outcome) -> Iterator[Probe]:
        """Take an outcome in."""
        self._known[outcome.probe] = outcome
        for rung in self._waiting.pop(outcome.probe):
            yield from self._advance(rung, outcome)

    def replace_children(self, failing: Iterable[Verdict]) -> Iterator[Probe]:
        """Ask each module that fails through a child whether its own code fails too."""
        for verdict in failing:
            if verdict.blamed() == verdict.fqn or not self._begin(("own", verdict.fqn)):
                continue
            if verdict.outcome.failure is not None and verdict.outcome.failure.stage != "export":
                continue
            if not EXPORTERS[self.template.exporter].takes_opaque_children:
                self.notes[verdict.fqn] = "its own code was not asked: the legacy exporter knows no opaque operator"
            else:
                yield from self._advance(self._own_code(verdict), None)

    def climb(self, cases: Iterable[Case]) -> Iterator[Probe]:
        """Ask what is still unknown of each disease."""
        for case in cases:
            if (
                self.dynamic
                and case.leading().outcome.status == OutcomeStatus.FAILED
                and self._begin(("dimensions", case.key))
            ):
                yield from self._advance(self._dimensions(case), None)

    def told(self, case: Case, finding: Finding, *, hidden_by: str | None) -> Finding:
        """`finding` with what has been learnt here. `hidden_by` is the finding that the module fails with as it is."""
        found = self.dimensions.get(case.key)
        if found is not None:
            finding = msgspec.structs.replace(finding, dimensions=found.failing, dimensions_passing=found.passing)
        return msgspec.structs.replace(finding, behind=hidden_by) if self.opaque(case.leading()) else finding

    def telling(self, case: Case) -> list[Verdict]:
        """The case's verdicts that stand: a module whose own code turned out to fail is told with that."""
        return [verdict for verdict in case.verdicts if self.own.get(verdict.fqn, verdict) is verdict]

    def opaque(self, verdict: Verdict) -> bool:
        """Whether the verdict's answer was given with the children replaced."""
        return self.own.get(verdict.fqn) is verdict

    def _begin(self, what: object) -> bool:
        fresh = what not in self._begun
        self._begun.add(what)
        return fresh

    def _advance(self, rung: Rung, answer: Outcome | None) -> Iterator[Probe]:
        """Send an answer, and further ones that are known, until the rung needs a new one or ends."""
        try:
            probe = next(rung) if answer is None else rung.send(answer)
            while probe.id in self._known:
                probe = rung.send(self._known[probe.id])
        except StopIteration:
            return
        if probe.id not in self._waiting:
            yield probe
        self._waiting.setdefault(probe.id, []).append(rung)

    def _own_code(self, verdict: Verdict) -> Rung:
        asked = verdict.deciding.asked
        outcome = yield self._probe(asked, opaque=True)
        if outcome.status == OutcomeStatus.NOT_APPLICABLE:
            self.notes[verdict.fqn] = (
                f"its own code could not be asked: no opaque operator stands here ({outcome.note})"
            )
            return
        found = judge(verdict.fqn, ((asked, Answer(asked, outcome)),))
        if outcome.kept_children:
            self.notes[verdict.fqn] = f"its own code was asked without replacing {'; '.join(outcome.kept_children)}"
        if found.failing and found.blamed() == verdict.fqn:
            self.own[verdict.fqn] = found

    def _dimensions(self, case: Case) -> Rung:
        leading = case.leading()
        asked = leading.deciding.asked
        probe = self._probe(asked, opaque=self.opaque(leading))
        found = yield from smallest_dimensions(probe, self.fact(asked), leading.outcome)
        self.dimensions[case.key] = found

    def _probe(self, place: CallSite, *, opaque: bool) -> Probe:
        # an opaque operator can be exported and not translated
        to = "export" if opaque else self.template.to
        return msgspec.structs.replace(self.template, fqn=place.fqn, call=place.call, opaque=opaque, to=to)


def with_own(placed: Iterable[Verdict], own: Mapping[str, Verdict]) -> list[Verdict]:
    """The failing modules' verdicts, each followed by what its own code does when its children are replaced."""
    return [one for verdict in placed for one in (verdict, own.get(verdict.fqn)) if one is not None]

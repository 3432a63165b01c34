"""Which probes must be asked so that every wanted question has its answer: equal modules are asked once.

Questions with equal digests share one answer. Those of one equivalence group, equal but for some plain attributes,
share one when a watched attempt gave the same answer and read none of the attributes in which they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol.scan import CallFact, Captured


@dataclass(frozen=True)
class CallSite:
    """One distinct call of one module."""

    fqn: str
    call: int


@dataclass(frozen=True)
class Answer:
    """The outcome for a question, and the place at which it was asked."""

    asked: CallSite
    outcome: Outcome


@dataclass
class _Family:
    """One equivalence group: who waits, who represents it now, and what representatives have shown."""

    differing: tuple[tuple[str, str], ...] = ()
    waiting: dict[str, tuple[CallSite, CallFact]] = field(default_factory=dict)
    asking: tuple[CallSite, CallFact] | None = None
    outcome: Outcome | None = None
    shown: list[tuple[CallFact, Answer, frozenset[int]]] = field(default_factory=list)


class Questions:
    """Tell it which places are wanted and what was answered; it yields the probes that are needed next."""

    def __init__(self, captured: Captured, template: Probe) -> None:
        self.template = template
        # dynamo would not run the descriptors that watch
        self.kin_counts = not EXPORTERS[template.exporter].traces_with_dynamo
        self._facts = {
            CallSite(module.fqn, index): call for module in captured.modules for index, call in enumerate(module.calls)
        }
        self._differing = {group.id: group.differing for group in captured.groups}
        self._families: dict[str, _Family] = {}
        self._answers: dict[str, Answer] = {}
        self._probes: dict[str, tuple[_Family, bool]] = {}

    def want(self, place: CallSite) -> Iterator[Probe]:
        """Ask for a place's answer; yields nothing where it is known or on its way."""
        fact = self._facts[place]
        family = self._family(fact)
        if fact.question in self._answers or fact.question in family.waiting:
            return
        if family.asking is not None and family.asking[1].question == fact.question:
            return
        family.waiting[fact.question] = (place, fact)
        yield from self._advance(family)

    def answered(self, outcome: Outcome) -> Iterator[Probe]:
        """Take an outcome in."""
        family, watched = self._probes.pop(outcome.probe)
        assert family.asking is not None
        place, fact = family.asking
        if not watched:
            self._answers[fact.question] = Answer(place, outcome)
            family.outcome = outcome
            if family.differing and self.kin_counts and outcome.status.is_conclusive:
                probe = self._probe(place, watch=family.differing)
                self._probes[probe.id] = (family, True)
                yield probe
                return
            family.asking = None
        else:
            self._learn(family, outcome)
            family.asking = None
        yield from self._advance(family)

    def answer(self, place: CallSite) -> Answer | None:
        """The answer for a place, once it is known."""
        return self._answers.get(self._facts[place].question)

    def fact(self, place: CallSite) -> CallFact:
        """The call at that place."""
        return self._facts[place]

    def _family(self, fact: CallFact) -> _Family:
        differing = self._differing.get(fact.group, ())
        name = fact.group if differing and self.kin_counts else fact.question
        return self._families.setdefault(name, _Family(differing if self.kin_counts else ()))

    def _learn(self, family: _Family, watched: Outcome) -> None:
        """A watched attempt counts only where watching did not change the answer."""
        assert family.asking is not None
        assert family.outcome is not None
        place, fact = family.asking
        same = watched.status == family.outcome.status and signature_of(watched) == signature_of(family.outcome)
        if not same or watched.reads is None:
            return
        read = set(watched.reads)
        columns = frozenset(i for i, pair in enumerate(family.differing) if pair in read)
        family.shown.append((fact, Answer(place, family.outcome), columns))

    def _advance(self, family: _Family) -> Iterator[Probe]:
        """Answer those who wait from what is known; then let the next of them represent the family."""
        for question, (_, fact) in list(family.waiting.items()):
            found = next((answer for other, answer, read in family.shown if _alike(fact, other, read)), None)
            if question in self._answers or found is not None:
                self._answers.setdefault(question, found or self._answers[question])
                del family.waiting[question]
        if family.asking is None and family.waiting:
            question = next(iter(family.waiting))
            family.asking = family.waiting.pop(question)
            family.outcome = None
            probe = self._probe(family.asking[0])
            self._probes[probe.id] = (family, False)
            yield probe

    def _probe(self, place: CallSite, watch: tuple[tuple[str, str], ...] = ()) -> Probe:
        return msgspec.structs.replace(self.template, fqn=place.fqn, call=place.call, watch=watch)


def _alike(fact: CallFact, other: CallFact, read: frozenset[int]) -> bool:
    return all(fact.marks[i] == other.marks[i] for i in read)

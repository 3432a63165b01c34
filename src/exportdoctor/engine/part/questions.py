"""Which probes must be asked so that every wanted question has its answer: equal modules are asked once.

Questions with equal digests share one answer, until an audit (audit.py) finds that they should not. Those of one
equivalence group, equal but for some plain attributes, share one when a watched attempt gave the same answer and read
none of the attributes in which they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.protocol.scan import CallFact, Captured
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.engine.call_tree import CallSite
from exportdoctor.engine.verdicts.judge import SiteOutcome


@dataclass
class _Group:
    """One equivalence group: who waits, who represents it now, and what its representatives have shown."""

    differing: tuple[tuple[str, str], ...] = ()
    waiting: dict[str, tuple[CallSite, CallFact]] = field(default_factory=dict)
    asking: tuple[CallSite, CallFact] | None = None
    outcome: Outcome | None = None
    shown: list[tuple[CallFact, SiteOutcome, frozenset[int]]] = field(default_factory=list)


class Questions:
    """Given the call sites that are wanted and the outcomes that come in, yields the probes that are needed next."""

    def __init__(self, captured: Captured, template: Probe) -> None:
        self.template = template
        # dynamo would not run the descriptors that watch
        self._can_watch = not EXPORTERS[template.exporter].traces_with_dynamo
        self._facts = {
            CallSite(module.fqn, index): call for module in captured.modules for index, call in enumerate(module.calls)
        }
        self._differing = {group.id: group.differing for group in captured.groups}
        self._groups: dict[str, _Group] = {}
        self._answers: dict[str, SiteOutcome] = {}
        self._probes: dict[str, tuple[_Group, bool]] = {}
        self._wanted: dict[CallSite, None] = {}
        self._alone: dict[CallSite, SiteOutcome | None] = {}
        self.seconds = 0.0

    def want(self, site: CallSite) -> Iterator[Probe]:
        """Ask for a call site's answer; yields nothing where it is known or on its way."""
        fact = self._facts[site]
        self._wanted[site] = None
        group = self._group(fact)
        if fact.question in self._answers or fact.question in group.waiting:
            return
        if group.asking is not None and group.asking[1].question == fact.question:
            return
        group.waiting[fact.question] = (site, fact)
        yield from self._advance(group)

    def take(self, outcome: Outcome) -> Iterator[Probe]:
        """Take an outcome in."""
        group, watched = self._probes.pop(outcome.probe)
        self.seconds += outcome.seconds
        assert group.asking is not None
        site, fact = group.asking
        if not watched:
            self._answers[fact.question] = SiteOutcome(site, outcome)
            group.outcome = outcome
            if group.differing and outcome.status.is_conclusive:
                probe = self._probe(site, watch=group.differing)
                self._probes[probe.id] = (group, True)
                yield probe
                return
            group.asking = None
        else:
            self._learn(group, outcome)
            group.asking = None
        yield from self._advance(group)

    def answer(self, site: CallSite) -> SiteOutcome | None:
        """The answer for a call site, once it is known."""
        if site in self._alone:
            return self._alone[site]
        return self._answers.get(self._facts[site].question)

    def told_sites(self) -> list[CallSite]:
        """The call sites whose answer is that of an equal one, which was asked in their place."""
        return [site for site in self._wanted if (told := self.answer(site)) is not None and told.asked != site]

    def split(self, representative: CallSite) -> tuple[CallSite, ...]:
        """Take back the answers of all that were told the one of `representative`, and return these call sites."""
        members = tuple(site for site in self.told_sites() if self._representative_of(site) == representative)
        self._alone.update(dict.fromkeys(members))
        return members

    def settle(self, site: CallSite, outcome: Outcome) -> None:
        """A call site of a split class has its own answer."""
        self._alone[site] = SiteOutcome(site, outcome)

    def fresh_probe(self, site: CallSite) -> Probe:
        """Asks a call site itself, whatever is known."""
        return msgspec.structs.replace(self._probe(site), fresh=True)

    def _representative_of(self, site: CallSite) -> CallSite | None:
        answer = self.answer(site)
        return answer.asked if answer is not None else None

    def fact(self, site: CallSite) -> CallFact:
        """The call at that call site."""
        return self._facts[site]

    def _group(self, fact: CallFact) -> _Group:
        differing = self._differing.get(fact.group, ()) if self._can_watch else ()
        return self._groups.setdefault(fact.group if differing else fact.question, _Group(differing))

    def _learn(self, group: _Group, watched: Outcome) -> None:
        """Note which attributes an attempt read; ignored if its outcome differs from the plain attempt's."""
        assert group.asking is not None
        assert group.outcome is not None
        site, fact = group.asking
        same = watched.status == group.outcome.status and signature_of(watched) == signature_of(group.outcome)
        if not same or watched.reads is None:
            return
        read = set(watched.reads)
        columns = frozenset(i for i, pair in enumerate(group.differing) if pair in read)
        group.shown.append((fact, SiteOutcome(site, group.outcome), columns))

    def _advance(self, group: _Group) -> Iterator[Probe]:
        """Answer those who wait from what is known; then let the next of them represent the group."""
        for question, (_, fact) in list(group.waiting.items()):
            found = next((answer for other, answer, read in group.shown if _alike(fact, other, read)), None)
            if question in self._answers or found is not None:
                self._answers.setdefault(question, found or self._answers[question])
                del group.waiting[question]
        if group.asking is None and group.waiting:
            question = next(iter(group.waiting))
            group.asking = group.waiting.pop(question)
            group.outcome = None
            probe = self._probe(group.asking[0])
            self._probes[probe.id] = (group, False)
            yield probe

    def _probe(self, site: CallSite, watch: tuple[tuple[str, str], ...] = ()) -> Probe:
        return msgspec.structs.replace(self.template, fqn=site.fqn, call=site.call, watch=watch)


def _alike(fact: CallFact, other: CallFact, read: frozenset[int]) -> bool:
    return all(fact.marks[i] == other.marks[i] for i in read)

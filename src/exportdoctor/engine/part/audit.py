"""Asks members of classes of equals themselves, and compares with what they were told.

Equal questions should have equal answers (worker/capture/fingerprint.py). A member that answers otherwise shows a fault
of exportdoctor: its class is split, and each of the others is asked itself, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from exportdoctor.core.failure.identity import same_failure
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.run.report import AuditRecord, FalseEquality
from exportdoctor.engine.call_tree import CallSite
from exportdoctor.engine.part.part_diagnosis import PartDiagnosis
from exportdoctor.engine.part.questions import Questions
from exportdoctor.engine.probe_driver import Prefetch, ProbeSteps
from exportdoctor.report.wording.scan import false_equality_note, varying_answer_note

_SHARE_OF_SECONDS = 0.01
_SECONDS = 0.25
_MEMBERS = 8


class Audit:
    """One part's audit. Without the option `audit` a few members are drawn with `seed`.

    They take at most 1 % of the time of the part's attempts, or a quarter of a second; the shortest is always asked.
    """

    def __init__(self, diagnosis: PartDiagnosis, questions: Questions, *, seed: int) -> None:
        self.split_questions: set[str] = set()
        self._diagnosis = diagnosis
        self._questions = questions
        self._seed = seed
        self._members = len(questions.told_sites())
        self._audited: set[CallSite] = set()
        self._faults: list[FalseEquality] = []
        self._notes: list[str] = []
        self._under_way = 0

    @property
    def is_under_way(self) -> bool:
        """Whether a member's answer is awaited."""
        return self._under_way > 0

    def steps(self) -> Iterator[ProbeSteps[None]]:
        """One for each member that is drawn."""
        for site in self._draw():
            self._under_way += 1
            yield self._ask(site)

    def new_notes(self) -> Iterator[str]:
        """Sentences on what was found since the last call."""
        notes, self._notes = self._notes, []
        yield from notes

    def record(self) -> AuditRecord | None:
        """The result; None where no answer was shared."""
        if not self._members:
            return None
        return AuditRecord(
            asked=len(self._audited), of=self._members, seed=self._seed, false_equalities=tuple(self._faults)
        )

    def _draw(self) -> list[CallSite]:
        sites = [site for site in self._questions.told_sites() if self._is_conclusive(site)]
        random.Random(self._seed).shuffle(sites)
        if self._diagnosis.options.audit:
            return sites
        drawn: list[CallSite] = []
        left = max(_SECONDS, _SHARE_OF_SECONDS * self._questions.seconds)
        for site in sites:
            if self._seconds(site) <= left and len(drawn) < _MEMBERS:
                left -= self._seconds(site)
                drawn.append(site)
        return drawn or sorted(sites, key=self._seconds)[:1]

    def _is_conclusive(self, site: CallSite) -> bool:
        """Whether no limit decided its answer: nothing could be compared with that, and a hang would be waited for."""
        told = self._questions.answer(site)
        return told is not None and told.outcome.status.is_conclusive

    def _seconds(self, site: CallSite) -> float:
        """What an attempt at it will take: what that of its equal took."""
        told = self._questions.answer(site)
        return told.outcome.seconds if told is not None else 0.0

    def _ask(self, site: CallSite) -> ProbeSteps[None]:
        try:
            yield from self._compare(site)
        finally:
            self._under_way -= 1

    def _compare(self, site: CallSite) -> ProbeSteps[None]:
        seen = yield self._questions.fresh_probe(site)
        told = self._questions.answer(site)
        if told is None or told.asked == site:
            return  # its class was split meanwhile
        self._audited.add(site)
        if self._agree(told.outcome, seen):
            return
        again = yield self._questions.fresh_probe(told.asked)
        if self._questions.answer(site) is not told:
            return
        if not self._agree(told.outcome, again):
            self._notes.append(varying_answer_note(told.asked.fqn, told.outcome, again))
            return
        members = self._split(told.asked)
        fault = FalseEquality(module=site.fqn, call=site.call, told_as=told.asked.fqn, told_as_call=told.asked.call)
        fault = msgspec.structs.replace(fault, difference=false_equality_note(fault, told.outcome, seen, len(members)))
        self._faults.append(fault)
        self._notes.append(fault.difference)
        yield Prefetch(tuple(map(self._questions.fresh_probe, members)))
        for member in members:
            self._questions.settle(member, (yield self._questions.fresh_probe(member)))

    def _split(self, representative: CallSite) -> tuple[CallSite, ...]:
        """Every member that `representative` answered for waits for an answer of its own."""
        members = self._questions.split(representative)
        self.split_questions.update(self._questions.fact(one).question for one in (representative, *members))
        for fqn in dict.fromkeys(member.fqn for member in members):
            self._diagnosis.open_module(fqn)
        return members

    def _agree(self, told: Outcome, seen: Outcome) -> bool:
        """Whether two attempts ended alike; one that a limit ended says nothing."""
        if not (told.status.is_conclusive and seen.status.is_conclusive):
            return True
        both_pass = told.passed and seen.passed
        return both_pass or same_failure(told, seen, exporter=self._diagnosis.options.exporter)

"""Finds which of the dynamic dimensions must be dynamic for a failure to show.

The search is a generator that yields probes and is sent outcomes. A probe that fails in another way counts as neither
reproducing the failure nor passing.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import msgspec

from exportdoctor.core.axis_names import group_derived
from exportdoctor.core.failure.identity import same_failure
from exportdoctor.core.protocol.scan import CallFact
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.reduce import ddmin

_QUESTIONS = 24

Names = tuple[str, ...]


Groups = tuple[Names, ...]
Answers = dict[frozenset[Names], Outcome]


@dataclass(frozen=True)
class Dimensions:
    """The fewest dynamic dimensions with which a failure shows, and those with which alone it passes, if known.

    `others` are further sets with which alone it shows too; no two sets share a dimension.
    """

    failing: Names
    passing: Names | None = None
    others: tuple[Names, ...] = ()


def smallest_dimensions(probe: Probe, fact: CallFact, outcome: Outcome) -> Generator[Probe, Outcome, Dimensions]:
    """Search below `probe`, which gave `outcome` with every dimension of `fact` dynamic; asks at most 24 probes.

    Once a set is found, the rest is asked: if it fails in the same way, making the set static does not help. An attempt
    that timed out would cost its limit each time, so that of one only static shapes are asked.
    """
    rest = group_derived(dict.fromkeys(name for leaf in fact.inputs for name in leaf.axes))
    if rest and outcome.status == OutcomeStatus.TIMED_OUT:
        answer = yield msgspec.structs.replace(probe, dynamic=())
        stays = answer.status == OutcomeStatus.TIMED_OUT
        return Dimensions(() if stays else _flat(rest), () if answer.passed else None)
    answers: Answers = {frozenset(rest): outcome}
    found: list[Names] = []
    answer = outcome
    while same_failure(outcome, answer, exporter=probe.exporter):
        smallest = yield from _minimal(probe, rest, outcome, answers)
        found.append(_flat(smallest))
        rest = tuple(item for item in rest if item not in smallest)
        if not smallest or len(answers) > _QUESTIONS:
            return Dimensions(found[0], others=tuple(found[1:]))
        answer = yield from _ask(probe, rest, answers)
    return Dimensions(found[0], _flat(rest) if answer.passed else None, tuple(found[1:]))


def _minimal(probe: Probe, items: Groups, outcome: Outcome, answers: Answers) -> Generator[Probe, Outcome, Groups]:
    """The fewest of `items`, all of which show the failure, that still do (ddmin)."""
    search, reply, smallest = ddmin(items), None, items
    try:
        while len(answers) < _QUESTIONS:
            batch, reply = search.send(reply), None
            for index, candidate in enumerate(batch):
                answer = yield from _ask(probe, candidate, answers)
                if same_failure(outcome, answer, exporter=probe.exporter):
                    reply, smallest = index, candidate
                    break
    except StopIteration:
        pass
    return smallest


def _ask(probe: Probe, candidate: Groups, answers: Answers) -> Generator[Probe, Outcome, Outcome]:
    key = frozenset(candidate)
    if key not in answers:
        answers[key] = yield msgspec.structs.replace(probe, dynamic=_flat(candidate))
    return answers[key]


def _flat(items: tuple[Names, ...]) -> Names:
    return tuple(name for item in items for name in item)

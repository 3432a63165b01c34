"""Carries the questions of one part's search for a cure; one at a time, for each depends on the last answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol import Captured
from exportdoctor.engine.prescribe import Asked, Prescriber


@dataclass
class CureSearch:
    """Feed it outcomes with `answered`; `twin` is the part of the small twin, where there is one."""

    prescriber: Prescriber
    twin: Captured | None
    _steps: Asked | None = None
    _waiting: str = ""
    _known: dict[str, Outcome] = field(default_factory=dict)

    def begin(self) -> Iterator[Probe]:
        """The first question."""
        self._steps = self.prescriber.steps()
        yield from self._go_on(None)

    def awaits(self, outcome: Outcome) -> bool:
        """Whether it was asked here."""
        return outcome.probe == self._waiting

    def answered(self, outcome: Outcome) -> Iterator[Probe]:
        """Take an outcome in; the next question, if there is one."""
        self._known[outcome.probe] = outcome
        yield from self._go_on(outcome)

    def _go_on(self, answer: Outcome | None) -> Iterator[Probe]:
        assert self._steps is not None
        self._waiting = ""
        try:
            probe = next(self._steps) if answer is None else self._steps.send(answer)
            while probe.id in self._known:
                probe = self._steps.send(self._known[probe.id])
        except StopIteration:
            self.prescriber.done = True
            return
        self._waiting = probe.id
        yield probe

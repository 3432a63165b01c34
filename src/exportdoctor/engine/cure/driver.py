"""Carries the questions of one part's search for a cure; each depends on the last answer, but for those asked ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol.scan import Captured
from exportdoctor.engine.cure.search import CureSearch
from exportdoctor.engine.cure.trial import Asked, Prefetch


@dataclass
class CureDriver:
    """Feed it outcomes with `answered`; `twin` is the part of the small twin, where there is one."""

    prescriber: CureSearch
    twin: Captured | None
    _steps: Asked | None = None
    _waiting: str = ""
    _asked: set[str] = field(default_factory=set)
    _known: dict[str, Outcome] = field(default_factory=dict)

    def begin(self) -> Iterator[Probe]:
        """The first question."""
        self._steps = self.prescriber.steps()
        yield from self._go_on(None)

    def awaits(self, outcome: Outcome) -> bool:
        """Whether it was asked here."""
        return outcome.probe in self._asked and outcome.probe not in self._known

    def answered(self, outcome: Outcome) -> Iterator[Probe]:
        """Take an outcome in; the next questions, if there are any."""
        self._known[outcome.probe] = outcome
        if outcome.probe == self._waiting:
            yield from self._go_on(outcome)

    def _go_on(self, answer: Outcome | None) -> Iterator[Probe]:
        assert self._steps is not None
        self._waiting = ""
        try:
            step = next(self._steps) if answer is None else self._steps.send(answer)
            while not isinstance(step, Probe) or step.id in self._known:
                if isinstance(step, Prefetch):
                    yield from self._ask(*step.probes)
                    step = next(self._steps)
                else:
                    step = self._steps.send(self._known[step.id])
        except StopIteration:
            self.prescriber.done = True
            return
        self._waiting = step.id
        yield from self._ask(step)

    def _ask(self, *probes: Probe) -> Iterator[Probe]:
        for probe in probes:
            if probe.id not in self._asked:
                self._asked.add(probe.id)
                yield probe

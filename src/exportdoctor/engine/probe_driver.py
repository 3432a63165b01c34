"""Drives generators that yield probes and are sent their outcomes: the searches for cures and the follow-up probes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe

Result = TypeVar("Result")


@dataclass(frozen=True)
class Prefetch:
    """Probes whose outcomes a generator will need, or may need. It is sent nothing for them; they can start at once."""

    probes: tuple[Probe, ...]


@dataclass(frozen=True)
class Lookahead:
    """Probes of a part's search whose outcomes may be needed next, the likeliest first. They are attempted where a
    processor would idle, and given up at the next one that does not name them. A generator is sent nothing for it."""

    part: str
    probes: tuple[Probe, ...] = ()


ProbeSteps = Generator[Probe | Prefetch | Lookahead, Outcome, Result]
"""Yields a probe and is sent its outcome, as often as it needs; returns what it has found."""


Request = Probe | Lookahead
"""What is asked of the scheduler."""


class ProbeDriver:
    """Runs any number of such generators for one part, side by side. A probe that several need is asked once."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcome] = {}
        self._waiting: dict[str, list[ProbeSteps[None]]] = {}

    def start(self, steps: ProbeSteps[None]) -> Iterator[Request]:
        """Begin with a generator; yields the probes that are needed first."""
        yield from self._advance(steps, None)

    def awaits(self, outcome: Outcome) -> bool:
        """Whether this is the outcome of a probe that was yielded here."""
        return outcome.probe in self._waiting

    def take(self, outcome: Outcome) -> Iterator[Request]:
        """Send an outcome to those that wait for it; yields the probes that are needed next."""
        self._outcomes[outcome.probe] = outcome
        for steps in self._waiting.pop(outcome.probe):
            yield from self._advance(steps, outcome)

    def _advance(self, steps: ProbeSteps[None], outcome: Outcome | None) -> Iterator[Request]:
        """Send an outcome, and further ones that are known, until the generator needs a new one or ends."""
        try:
            step = next(steps) if outcome is None else steps.send(outcome)
            while not isinstance(step, Probe) or step.id in self._outcomes:
                match step:
                    case Prefetch(probes=probes):
                        yield from self._request(*probes)
                        step = next(steps)
                    case Lookahead():
                        yield step
                        step = next(steps)
                    case Probe():
                        step = steps.send(self._outcomes[step.id])
        except StopIteration:
            return
        yield from self._request(step)
        self._waiting[step.id].append(steps)

    def _request(self, *probes: Probe) -> Iterator[Probe]:
        for probe in probes:
            if probe.id not in self._waiting and probe.id not in self._outcomes:
                self._waiting[probe.id] = []
                yield probe

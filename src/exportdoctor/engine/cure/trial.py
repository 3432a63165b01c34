"""What a search for a cure asks and what it makes of an answer. Pure: a ground's probes, and the result of one try."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import msgspec

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.finding import ShimResult
from exportdoctor.core.outcome import Outcome, OutcomeStatus
from exportdoctor.core.probe import Probe
from exportdoctor.engine.cure.catalogue import Ids


@dataclass(frozen=True)
class Prefetch:
    """Probes that will be asked presently, or may be: whoever carries them can begin at once. It has no answer."""

    probes: tuple[Probe, ...]


Asked = Generator[Probe | Prefetch, Outcome, None]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A set of shims that was asked where `before` was the failure."""

    shims: Ids
    before: Outcome
    outcome: Outcome
    result: ShimResult
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class SearchTarget:
    """Where a search asks. `values`: its tensors have some, so a program's numbers can be compared with eager's."""

    probe: Probe
    first: Outcome
    values: bool
    said: str = ""

    def with_shims(self, shims: Ids) -> Probe:
        """The question with these shims."""
        return msgspec.structs.replace(self.probe, shims=shims, to="run" if self.values else "export")


@dataclass(frozen=True, kw_only=True)
class Cured:
    """A set that cures, the outcome that shows it, and the failure for which each of its shims was added."""

    shims: Ids
    outcome: Outcome
    chain: tuple[tuple[str, Outcome], ...]

    def failure_of(self, shim: str) -> Outcome:
        """The failure for which this shim was added."""
        return dict(self.chain)[shim]


def right_at_its_size(outcome: Outcome) -> bool:
    """Whether the example's size has eager's numbers, and every other size has them or is refused aloud."""
    return bool(outcome.numbers) and outcome.numbers[0].holds and all(r.holds or r.refused for r in outcome.numbers)


def note_of(outcome: Outcome) -> str:
    """What there is to say of a try beyond its result."""
    if outcome.status == OutcomeStatus.NOT_APPLICABLE:
        return outcome.note.partition(": ")[2] or outcome.note  # it begins with the shim's own name
    if outcome.note or outcome.signal:
        return outcome.note or (outcome.signal or "")
    wrong = next((row for row in outcome.numbers if not row.holds), None)
    if wrong is not None:
        what = wrong.trouble or f"differs from eager by {wrong.max_abs:.1e} (allowed {wrong.tolerance:.0e})"
        return f"exports, but on inputs {wrong.inputs}: {what}"
    if outcome.status.ended_the_process:
        return outcome.status.replace("_", " ")
    return ""


def raised_note(outcome: Outcome) -> str:
    """What a try raised that leads nowhere, in a line."""
    facts = outcome.failure.exceptions if outcome.failure is not None else ()
    return f"raises {facts[0].name}: {first_line(facts[0].message, 120)}".rstrip(": ") if facts else ""

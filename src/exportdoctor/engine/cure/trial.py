"""Where a search for a cure tries sets of shims, and what came of a try. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from exportdoctor.core.failure.classify import kind_of
from exportdoctor.core.failure.finding import ShimResult
from exportdoctor.core.failure.identity import of_other_operators, same_line
from exportdoctor.core.failure.kinds import NUMBERS_DIFFER, FailureKind
from exportdoctor.core.failure.messages import LEAKED_CONSTANT, OF_UNUSED_CONSTANTS
from exportdoctor.core.records.outcome import Agreement, ExceptionFact, Failure, Frame, Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.engine.cure.catalogue import Chain, Ids
from exportdoctor.report.wording.export import numbers_of_pass_differ, says_unloadable

SEARCHED_STAGES = {
    "export": "export",
    "decompose": "decomposed",
    "translate": "onnx",
    "load": "ort",
    "run": "ort",
    "numbers": "ort",
}
"""The stages of failures for which shims are searched, each with how far the program has to get. Numbers are those of
an ONNX file; where they are the program's own, that is the export."""


@dataclass(frozen=True, kw_only=True)
class SearchTarget:
    """What a search tries shims on: the part or its small model, called `name` in a proof; `first` is its failure.

    `values`: its tensors have values, so that a program's numbers can be compared with eager's. `to` is how far the
    program has to get: where that is further than the export, its numbers are asked for apart.
    """

    probe: Probe
    first: Outcome
    values: bool
    name: str
    to: str = "export"

    def with_shims(self, shims: Ids, *, proved: bool = True) -> Probe:
        """The probe with these shims; if not `proved`, the program is compared on the known input sets only."""
        if self.to == "export" and self.values:
            return self.with_numbers(shims, proved=proved)
        return msgspec.structs.replace(self.probe, shims=shims, to=self.to)

    def with_numbers(self, shims: Ids, *, proved: bool = True) -> Probe:
        """The probe that compares the program with eager."""
        return msgspec.structs.replace(self.probe, shims=shims, to="run" if proved else "compare")

    def at_stage(self, to: str, first: Outcome) -> SearchTarget:
        """The same part, whose program has to get as far as `to`, and with shims ends in `first`."""
        return replace(self, probe=msgspec.structs.replace(self.probe, to=to), first=first, to=to)

    @property
    def ground(self) -> Probe:
        """The probe that asks whether a proof on it could see a fault."""
        return msgspec.structs.replace(self.probe, to="ground")


@dataclass(frozen=True, kw_only=True)
class ShimTrial:
    """A set of shims that was tried where `before` was the failure; `met_before`: another set had led to its own."""

    shims: Ids
    before: Outcome
    outcome: Outcome
    result: ShimResult
    note: str = ""
    met_before: bool = False

    @property
    def outcomes(self) -> tuple[Outcome, Outcome]:
        """Before it and with it."""
        return self.before, self.outcome


@dataclass(frozen=True, kw_only=True)
class CuringSet:
    """A set that cures, the outcome that shows it, and the failure for which each of its shims was added.

    One that is not `proved` was compared on the known input sets only: nothing was drawn. `on` names what `outcome` was
    compared on.
    """

    shims: Ids
    outcome: Outcome
    chain: Chain
    on: str
    proved: bool = True

    def failure_of(self, shim: str) -> Outcome:
        """The failure for which this shim was added."""
        return dict(self.chain)[shim]


def has_no_file(outcome: Outcome) -> bool:
    """Whether it was seen that no file of the program can be written or loaded."""
    return any(map(says_unloadable, (row.note for row in outcome.numbers)))


def failure_of_numbers(outcome: Outcome) -> Outcome | None:
    """The outcome as one that fails because its program computes otherwise than eager; None where it does not."""
    wrong = next((row for row in outcome.numbers if not (row.holds or row.says_nothing or row.refused)), None)
    return with_wrong_row(outcome, wrong) if wrong is not None else None


def with_wrong_row(outcome: Outcome, wrong: Agreement) -> Outcome:
    """The outcome as one that fails because of this row."""
    raised = ExceptionFact(type=NUMBERS_DIFFER, message=numbers_of_pass_differ(wrong))
    failure = Failure(stage="numbers", exceptions=(raised,), frames=wrong.at)
    return msgspec.structs.replace(outcome, status=OutcomeStatus.FAILED, failure=failure)


def is_later_failure(before: Outcome, after: Outcome, *, exporter: str) -> bool:
    """Whether the second failure comes later in the forward.

    It does if it is at a later line of the same function; else if more submodules had been entered, or as many and more
    nodes traced, since a shim may also move work out of the graph. Without a graph, a line of a forward must have
    failed. A program is translated operator by operator: at the same line, another one comes later. What an object
    among the inputs has for shapes, torch looks at once it can take the object apart.
    """
    one, other = before.failure, after.failure
    kinds = tuple(kind_of(one, exporter=exporter) for one in (before, after))
    if kinds == (FailureKind.UNREGISTERED_PYTREE, FailureKind.INVALID_DYNAMIC_SHAPES):
        return True
    if kinds[1].is_found_after_tracing and (other is None or other.culprit is None):
        return True
    if other is not None and other.culprit is None and _is_of_constants(other) and not (one and _is_of_constants(one)):
        return True
    if one is None or other is None:
        return other is not None
    lines = _lines_apart(one, other)
    if lines > 0:
        return True
    if one.stage == other.stage and same_line(before, after) and of_other_operators(before, after):
        return True
    if one.entered is not None and other.entered is not None and one.entered != other.entered:
        return other.entered > one.entered
    if one.traced is not None and other.traced is not None:
        return lines == 0 and other.traced > one.traced
    return other.traced is not None or other.deepest_module is not None


def _is_of_constants(failure: Failure) -> bool:
    """Whether torch refuses a constant of the program, when all was traced."""
    if any(LEAKED_CONSTANT in fact.message for fact in failure.exceptions):
        return True
    return any(frame.function.endswith(OF_UNUSED_CONSTANTS) for frame in failure.frames)


def _lines_apart(one: Failure, other: Failure) -> int:
    """By how many lines the second failure is further down, in the outermost function where they part; 0 = unknown."""
    for first, second in zip(_user_frames(one), _user_frames(other), strict=False):
        if (first.file, first.function) != (second.file, second.function):
            return 0
        if first.line != second.line:
            return second.line - first.line
    return 0


def _user_frames(failure: Failure) -> list[Frame]:
    """The frames of the user's code and its libraries, outermost first."""
    return [frame for frame in failure.frames if frame.user]

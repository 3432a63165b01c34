"""Judges a module by the outcomes of its attempts: whether it passes, and whose code fails. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from exportdoctor.core.failure.identity import same_line
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.run.report import FAILING, ModuleStatus, PartVerdict
from exportdoctor.engine.call_tree import CallSite, translate_fqn


@dataclass(frozen=True)
class SiteOutcome:
    """The outcome for a question, and the call site at which it was asked."""

    asked: CallSite
    outcome: Outcome


@dataclass(frozen=True)
class ModuleVerdict:
    """A module's status and the answer that decided. `through` is a child to blame that no frame shows."""

    fqn: str
    status: ModuleStatus
    deciding: SiteOutcome
    call: int
    seconds: float
    asked_itself: bool
    through: str | None = None

    @property
    def failing(self) -> bool:
        """Whether the module cannot be exported as it is."""
        return self.status in FAILING

    @property
    def outcome(self) -> Outcome:
        """The outcome that decided."""
        return self.deciding.outcome

    @property
    def same_as(self) -> str | None:
        """The FQN of the equal module that was asked in its place."""
        return None if self.deciding.asked.fqn == self.fqn else self.deciding.asked.fqn

    @property
    def located(self) -> bool:
        """Whether a frame of a submodule or of the user's code raised. The stack of a dead process is not reliable."""
        failure = self.outcome.failure
        if failure is None or self.outcome.status != OutcomeStatus.FAILED:
            return False
        return failure.deepest_module is not None or failure.culprit is not None

    @property
    def blamed_module(self) -> str:
        """The FQN of the submodule whose code failed, as it lies below this module; itself if unknown."""
        if self.through is not None:
            return self.through
        failure = self.outcome.failure
        deepest = failure.deepest_module if failure else None
        if deepest is None:
            return self.fqn
        return translate_fqn(deepest, asked=self.deciding.asked.fqn, member=self.fqn)


def judge(fqn: str, answers: tuple[tuple[CallSite, SiteOutcome], ...]) -> ModuleVerdict:
    """The verdict for a module from the answers to all its distinct calls: it passes only where every call does."""
    deciding_place, deciding = min(answers, key=lambda pair: _weight(pair[1].outcome))
    return ModuleVerdict(
        fqn=fqn,
        status=_status(fqn, deciding),
        deciding=deciding,
        call=deciding_place.call,
        seconds=sum(answer.outcome.seconds for _, answer in answers),
        asked_itself=any(answer.asked.fqn == fqn for _, answer in answers),
    )


def _weight(outcome: Outcome) -> int:
    """The lowest decides: one call that fails is enough, and one of which nothing is known rules out a pass."""
    return 2 if outcome.passed else 1 if outcome.status.says_nothing else 0


def _status(fqn: str, answer: SiteOutcome) -> ModuleStatus:
    match answer.outcome.status:
        case OutcomeStatus.PASSED:
            return "pass"
        case OutcomeStatus.CRASHED | OutcomeStatus.OUT_OF_MEMORY:
            return "crashed"
        case OutcomeStatus.TIMED_OUT:
            return "timed_out"
        case OutcomeStatus.OWN_FAULT | OutcomeStatus.NO_DEVICE:
            return "unknown"
        case OutcomeStatus.FAILED | OutcomeStatus.NOT_APPLICABLE | OutcomeStatus.SHIM_TROUBLE:
            failure = answer.outcome.failure
            deepest = failure.deepest_module if failure else None
            own = deepest is None or translate_fqn(deepest, asked=answer.asked.fqn, member=fqn) == fqn
            return "fails_own" if own else "fails_child"


def shows_same_failure(one: ModuleVerdict, other: ModuleVerdict) -> bool:
    """Whether both fail, and in the same way; `other` must be a failure that no frame places in a submodule."""
    return one.failing and not other.located and same_line(one.outcome, other.outcome)


def blame_child(verdict: ModuleVerdict, child: ModuleVerdict) -> ModuleVerdict:
    """`verdict` with the child to blame for it."""
    status = "fails_child" if verdict.status == "fails_own" else verdict.status
    return dataclasses.replace(verdict, status=status, through=child.blamed_module)


def verdict_of_part(root: ModuleVerdict | None) -> PartVerdict:
    """A part exports when its root does."""
    if root is None or root.failing:
        return "fails"
    return "passes" if root.outcome.passed else "unknown"

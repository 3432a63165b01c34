"""What drivers and their callers exchange: a verdict on a candidate, a step, how a search ended, its result.

The only place for these words; every value is frozen. The three verdicts are those of delta debugging (Zeller
and Hildebrandt 2002: fail, pass, unresolved), seen from the bug's side.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

C = TypeVar("C")
R = TypeVar("R")


class Verdict(StrEnum):
    """What is said of one candidate.

    - `yes`: interesting, it still fails with the signature that is looked for
    - `no`: it passes
    - `unknown`: neither: it fails in another way, cannot be built, or ran out of time

    A search treats `unknown` like `no`; but only a `no` can be the closest *passing* variant, so whoever
    judges should not call another failure `no`.
    """

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Ended(StrEnum):
    """Why a search came to its end."""

    FINISHED = "finished"
    QUESTIONS = "questions"
    STOPPED = "stopped"
    LOG = "log"
    FLAKY = "flaky"


@dataclass(frozen=True)
class Step(Generic[C]):
    """One judged candidate, in the order in which a serial search needs them.

    `accepted` says that it is the smallest interesting one so far; `asked` counts the distinct candidates
    needed up to here.
    """

    candidate: C
    verdict: Verdict
    accepted: bool
    asked: int


class Flaky(Exception):
    """The same candidate was given two different verdicts, so nothing that follows from either is certain."""

    def __init__(self, candidate: object, first: Verdict, second: Verdict) -> None:
        super().__init__(f"the same candidate was judged {first.value!r} and then {second.value!r}")
        self.candidate = candidate
        self.first = first
        self.second = second


class NotInteresting(Exception):
    """The candidate that a search was to start from is not interesting, so there is nothing to reduce."""

    def __init__(self, start: object, verdict: Verdict) -> None:
        super().__init__(f"the search cannot start: its first candidate was judged {verdict.value!r}, not 'yes'")
        self.start = start
        self.verdict = verdict


@dataclass(frozen=True)
class Reduced(Generic[C, R]):
    """What a search found, whether or not it was allowed to finish.

    `smallest` is interesting, unless the drive ended before its start was judged. `closest` is a passing
    candidate, the nearest to it and among those the latest that was needed: what differs between the two is
    what makes the difference. `asked` counts distinct candidates needed and is the same for every driver.
    `answer` is what the search itself concluded, None unless it finished. `flaky` is the contradiction that
    ended it, or that the last confirmation met.
    """

    smallest: C
    closest: C | None
    asked: int
    unknown: int
    ended: Ended
    answer: R | None
    flaky: Flaky | None = None

    @property
    def complete(self) -> bool:
        """Whether the search ran to its own end, and not to that of a budget, a log or our trust."""
        return self.ended is Ended.FINISHED

"""What drivers and their callers exchange: a verdict on a candidate, a step, how a search ended, its result.

The three verdicts are those of delta debugging (Zeller and Hildebrandt 2002: fail, pass, unresolved), seen from the
bug's side.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

C = TypeVar("C")
R = TypeVar("R")


class Verdict(StrEnum):
    """The verdict on one candidate.

    - `yes`: interesting, it still fails with the signature that is looked for
    - `no`: it passes
    - `unknown`: neither: it fails in another way, cannot be built, or ran out of time

    A search treats `unknown` like `no`; but only a `no` can be the closest *passing* variant, so another failure
    must not be judged `no`.
    """

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Ended(StrEnum):
    """Why a search came to its end."""

    FINISHED = "finished"
    CANDIDATES = "candidates"
    STOPPED = "stopped"


@dataclass(frozen=True)
class JudgedCandidate(Generic[C]):
    """One judged candidate, in the order in which a serial search needs them.

    `accepted`: it is the smallest interesting one so far; `asked` counts the distinct candidates needed up to here.
    """

    candidate: C
    verdict: Verdict
    accepted: bool
    asked: int


class NotInteresting(Exception):
    """The candidate that a search was to start from is not interesting, so there is nothing to reduce."""

    def __init__(self, start: object, verdict: Verdict) -> None:
        super().__init__(f"the search cannot start: its first candidate was judged {verdict.value!r}, not 'yes'")
        self.start = start
        self.verdict = verdict


@dataclass(frozen=True)
class SearchResult(Generic[C, R]):
    """The result of a search, whether or not it was allowed to finish.

    `smallest` is interesting, unless the drive ended before its start was judged. `closest` is a passing
    candidate, the nearest to it and among those the latest that was needed: what differs between the two is
    what makes the difference. `asked` counts distinct candidates needed and is the same for every driver.
    `answer` is what the search itself returned, None unless it finished.
    """

    smallest: C
    closest: C | None
    asked: int
    ended: Ended
    answer: R | None

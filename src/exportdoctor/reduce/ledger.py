"""What one drive remembers: every verdict by the candidate's key, and which of them the search needed.

The only place for the cache, for noticing a contradiction, and for choosing the closest passing variant. It
is born and dies with one drive. A verdict that a parallel driver got ahead of need, or that came from a log,
is known but not needed until the search reaches it, so results do not depend on what was known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from exportdoctor.reduce.verdict import Flaky, Verdict

C = TypeVar("C")


class Ledger(Generic[C]):
    """Verdicts by key, in the order in which they were last needed."""

    def __init__(self, *, key: Callable[[C], Hashable], distance: Callable[[C, C], int]) -> None:
        self._key = key
        self._distance = distance
        self._known: dict[Hashable, Verdict] = {}
        self._needed: dict[Hashable, C] = {}

    def learn_key(self, key: Hashable, verdict: Verdict, candidate: object = None) -> None:
        """Record a verdict; raise `Flaky` where it contradicts an earlier one."""
        earlier = self._known.setdefault(key, verdict)
        if earlier is not verdict:
            raise Flaky(key if candidate is None else candidate, earlier, verdict)

    def learn(self, candidate: C, verdict: Verdict) -> None:
        """Record what was said of a candidate; raise `Flaky` where it contradicts an earlier verdict."""
        self.learn_key(self._key(candidate), verdict, candidate)

    def knows(self, candidate: C) -> bool:
        """Whether a verdict is at hand."""
        return self._key(candidate) in self._known

    def was_needed(self, candidate: C) -> bool:
        """Whether the search has come to this candidate before."""
        return self._key(candidate) in self._needed

    def need(self, candidate: C) -> Verdict:
        """The known verdict of a candidate that the search has come to."""
        key = self._key(candidate)
        self._needed.pop(key, None)
        self._needed[key] = candidate
        return self._known[key]

    @property
    def asked(self) -> int:
        """How many distinct candidates the search has come to."""
        return len(self._needed)

    @property
    def unknown(self) -> int:
        """How many of those nobody could judge."""
        return sum(self._known[key] is Verdict.UNKNOWN for key in self._needed)

    def closest_passing(self, smallest: C) -> C | None:
        """The passing candidate nearest to `smallest`; among equals the one needed last."""
        passing = [c for key, c in reversed(self._needed.items()) if self._known[key] is Verdict.NO]
        return min(passing, key=lambda candidate: self._distance(candidate, smallest), default=None)

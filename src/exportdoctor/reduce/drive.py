"""Runs a search against an oracle that judges its candidates.

The result (smallest, closest, asked, answer) depends on the verdicts alone: not on whether the oracle judges one
candidate at a time or several (parallel_oracle.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar, cast

from exportdoctor.reduce.search_protocol import Search
from exportdoctor.reduce.verdict import Ended, JudgedCandidate, NotInteresting, SearchResult, Verdict

C = TypeVar("C")
C_contra = TypeVar("C_contra", contravariant=True)
R = TypeVar("R")

Steps: TypeAlias = Generator[JudgedCandidate[C], None, SearchResult[C, R]]


def size_of(candidate: object) -> int:
    """The default size: a number is its own, anything else has a length."""
    return candidate if isinstance(candidate, int) else len(cast(Sized, candidate))


@dataclass(frozen=True)
class SearchLimits(Generic[C]):
    """What a drive may cost, and how it measures candidates.

    - `candidates`: the most distinct candidates that are judged
    - `should_stop`: called before each new candidate: a clock, or a flag that Ctrl-C sets
    - `size`, `distance`: for the smallest interesting candidate and the closest passing one; without a `distance`,
      the nearest in size
    """

    candidates: int | None = None
    should_stop: Callable[[], bool] = lambda: False
    size: Callable[[C], int] = size_of
    distance: Callable[[C, C], int] | None = None

    def distance_between(self, one: C, other: C) -> int:
        """How far two candidates are apart."""
        return self.distance(one, other) if self.distance else abs(self.size(one) - self.size(other))


class Oracle(Protocol[C_contra]):
    """Gives the verdict of a candidate. `ahead(n)` names up to n candidates that follow if it is not interesting."""

    def __call__(self, candidate: C_contra, ahead: Callable[[int], tuple[C_contra, ...]]) -> Verdict: ...


class _Lookahead(Iterator[C]):
    """An iterator over a batch. What `ahead` reads early is still delivered later, once and in order."""

    def __init__(self, batch: Iterable[C]) -> None:
        self._rest = iter(batch)
        self._buffer: deque[C] = deque()

    def __next__(self) -> C:
        return self._buffer.popleft() if self._buffer else next(self._rest)

    def ahead(self, count: int, wanted: Callable[[C], bool]) -> tuple[C, ...]:
        """The next `count` candidates that are `wanted`, or as many as there are."""
        found = [candidate for candidate in self._buffer if wanted(candidate)][:count]
        while len(found) < count:
            for candidate in self._rest:
                self._buffer.append(candidate)
                if wanted(candidate):
                    found.append(candidate)
                break
            else:
                break
        return tuple(found)


class _Cut(Exception):
    """The drive must end here."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.value)
        self.ended = ended


class _Drive(Generic[C]):
    """The state of one drive: every verdict, that of the candidate needed last at the end, and the smallest one."""

    def __init__(self, oracle: Oracle[C], start: C, limits: SearchLimits[C]) -> None:
        self.oracle = oracle
        self.limits = limits
        self.smallest = start
        self.verdicts: dict[C, Verdict] = {}

    def judge(self, candidate: C, queue: _Lookahead[C]) -> Verdict:
        known = self.verdicts.pop(candidate, None)
        self.verdicts[candidate] = verdict = known if known is not None else self._ask(candidate, queue)
        return verdict

    def _ask(self, candidate: C, queue: _Lookahead[C]) -> Verdict:
        if len(self.verdicts) == self.limits.candidates:
            raise _Cut(Ended.CANDIDATES)
        if self.limits.should_stop():
            raise _Cut(Ended.STOPPED)
        return self.oracle(candidate, lambda count: queue.ahead(count, self._is_new))

    def _is_new(self, candidate: C) -> bool:
        return candidate not in self.verdicts

    def step(self, candidate: C, queue: _Lookahead[C]) -> JudgedCandidate[C]:
        verdict = self.judge(candidate, queue)
        size = self.limits.size
        accepted = verdict is Verdict.YES and size(candidate) <= size(self.smallest)
        if accepted:
            self.smallest = candidate
        return JudgedCandidate(candidate, verdict, accepted, len(self.verdicts))

    def begin(self) -> Generator[JudgedCandidate[C], None, None]:
        """Judge the start: is there anything to reduce?"""
        first = self.step(self.smallest, _Lookahead(()))
        yield first
        if first.verdict is not Verdict.YES:
            raise NotInteresting(self.smallest, first.verdict)

    def first_interesting(self, batch: Iterable[C]) -> Generator[JudgedCandidate[C], None, int | None]:
        """The index of the first interesting candidate of a batch."""
        queue = _Lookahead(batch)
        for index, candidate in enumerate(queue):
            step = self.step(candidate, queue)
            yield step
            if step.verdict is Verdict.YES:
                return index
        return None

    def search(self, search: Search[C, R]) -> Generator[JudgedCandidate[C], None, R]:
        try:
            batch = next(search)
            while True:
                reply = yield from self.first_interesting(batch)
                batch = search.send(reply)
        except StopIteration as end:
            return cast(R, end.value)

    def result(self, ended: Ended, answer: R | None) -> SearchResult[C, R]:
        """The closest passing candidate is, among equally close ones, the one that was needed last."""
        passing = [candidate for candidate, verdict in self.verdicts.items() if verdict is Verdict.NO]
        closest = min(reversed(passing), key=lambda one: self.limits.distance_between(one, self.smallest), default=None)
        return SearchResult(self.smallest, closest, len(self.verdicts), ended, answer)


def steps(search: Search[C, R], oracle: Oracle[C], *, start: C, limits: SearchLimits[C] | None = None) -> Steps[C, R]:
    """Drive `search`, one step at a time, for a caller who shows or records each; returns the result.

    `start` is judged first; raises `NotInteresting` if it is not interesting.
    """
    state = _Drive(oracle, start, limits or SearchLimits())
    try:
        yield from state.begin()
        answer = yield from state.search(search)
    except _Cut as cut:
        return state.result(cut.ended, None)
    return state.result(Ended.FINISHED, answer)


def drive(
    search: Search[C, R], ask: Callable[[C], Verdict], *, start: C, limits: SearchLimits[C] | None = None
) -> SearchResult[C, R]:
    """Drive `search` by judging one candidate at a time; see `steps`."""
    course = steps(search, lambda candidate, ahead: ask(candidate), start=start, limits=limits)
    while True:
        try:
            next(course)
        except StopIteration as end:
            return cast("SearchResult[C, R]", end.value)

"""Runs a search against whoever can judge its candidates: one at a time, or from a log of earlier verdicts.

The only place where a search meets verdicts; drive_parallel.py adds another oracle and nothing else. The
invariant: smallest, closest, asked and answer depend on the verdicts alone, not on the driver, its width or
its log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Sized
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar, cast

from exportdoctor.reduce.ledger import Ledger
from exportdoctor.reduce.lookahead import Lookahead
from exportdoctor.reduce.search import Search
from exportdoctor.reduce.verdict import Ended, Flaky, NotInteresting, Reduced, Step, Verdict

C = TypeVar("C")
C_contra = TypeVar("C_contra", contravariant=True)
R = TypeVar("R")
T = TypeVar("T")

Steps: TypeAlias = Generator[Step[C], None, Reduced[C, R]]
Log: TypeAlias = Iterable[tuple[Hashable, Verdict]]


def itself(candidate: Hashable) -> Hashable:
    """The default key: the candidate."""
    return candidate


def size_of(candidate: object) -> int:
    """The default size: a number is its own, anything else has a length."""
    return candidate if isinstance(candidate, int) else len(cast(Sized, candidate))


@dataclass(frozen=True)
class Terms(Generic[C]):
    """What a drive may cost, and how it knows and weighs candidates.

    - `questions`: at most so many distinct candidates, known ones included, so that a resumed run ends where
      an uninterrupted one would. A parallel driver may waste a few more on what turns out not to be needed.
    - `should_stop`: asked before each question that nobody has answered yet: a clock, or a flag that Ctrl-C
      sets
    - `confirmations`: how often the result is asked again at the end, past the cache and on top of
      `questions`
    - `size`, `distance`: for the smallest interesting candidate, and the closest passing one; without a
      `distance`, the nearest in size
    - `log`: earlier verdicts by key; a log that contradicts itself ends the drive as flaky
    """

    questions: int | None = None
    should_stop: Callable[[], bool] = lambda: False
    confirmations: int = 0
    key: Callable[[C], Hashable] = itself
    size: Callable[[C], int] = size_of
    distance: Callable[[C, C], int] | None = None
    log: Log = ()

    def apart(self, one: C, other: C) -> int:
        """How far two candidates are apart."""
        return self.distance(one, other) if self.distance else abs(self.size(one) - self.size(other))


class Oracle(Protocol[C_contra]):
    """Gives the verdict of a candidate, or None where it has none and the search must end.

    `ahead(n)` names up to n candidates that will be needed next if this one is not interesting.
    """

    def __call__(self, candidate: C_contra, ahead: Callable[[int], tuple[C_contra, ...]]) -> Verdict | None: ...


class _Cut(Exception):
    """The drive must end here."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.value)
        self.ended = ended


class _Drive(Generic[C]):
    """The state of one drive: its ledger and the smallest interesting candidate so far."""

    def __init__(self, oracle: Oracle[C], start: C, terms: Terms[C]) -> None:
        self.oracle = oracle
        self.terms = terms
        self.smallest = start
        self.ledger: Ledger[C] = Ledger(key=terms.key, distance=terms.apart)

    def judge(self, candidate: C, queue: Lookahead[C]) -> Verdict:
        if not self.ledger.was_needed(candidate):
            if self.ledger.asked == self.terms.questions:
                raise _Cut(Ended.QUESTIONS)
            if not self.ledger.knows(candidate):
                self.ledger.learn(candidate, self._ask(candidate, queue))
        return self.ledger.need(candidate)

    def _ask(self, candidate: C, queue: Lookahead[C]) -> Verdict:
        if self.terms.should_stop():
            raise _Cut(Ended.STOPPED)
        verdict = self.oracle(candidate, lambda count: queue.ahead(count, self._is_new))
        if verdict is None:
            raise _Cut(Ended.LOG)
        return verdict

    def _is_new(self, candidate: C) -> bool:
        return not self.ledger.knows(candidate)

    def step(self, candidate: C, verdict: Verdict) -> Step[C]:
        size, yes = self.terms.size, verdict is Verdict.YES
        accepted = yes and size(candidate) <= size(self.smallest)
        if accepted:
            self.smallest = candidate
        return Step(candidate, verdict, accepted, self.ledger.asked)

    def begin(self) -> Generator[Step[C], None, None]:
        """Learn the log and ask whether there is anything to reduce."""
        for key, verdict in self.terms.log:
            self.ledger.learn_key(key, verdict)
        verdict = self.judge(self.smallest, Lookahead(()))
        yield self.step(self.smallest, verdict)
        if verdict is not Verdict.YES:
            raise NotInteresting(self.smallest, verdict)

    def first(self, batch: Iterable[C]) -> Generator[Step[C], None, int | None]:
        """The index of the first interesting candidate of a batch."""
        queue = Lookahead(batch)
        for index, candidate in enumerate(queue):
            verdict = self.judge(candidate, queue)
            yield self.step(candidate, verdict)
            if verdict is Verdict.YES:
                return index
        return None

    def search(self, search: Search[C, R]) -> Generator[Step[C], None, R]:
        try:
            batch = next(search)
            while True:
                reply = yield from self.first(batch)
                batch = search.send(reply)
        except StopIteration as end:
            return cast(R, end.value)

    def confirm(self) -> None:
        for _ in range(self.terms.confirmations):
            verdict = None if self.terms.should_stop() else self.oracle(self.smallest, lambda count: ())
            if verdict is not None:
                self.ledger.learn(self.smallest, verdict)

    def result(self, ended: Ended, answer: R | None, flaky: Flaky | None = None) -> Reduced[C, R]:
        closest, asked = self.ledger.closest_passing(self.smallest), self.ledger.asked
        return Reduced(self.smallest, closest, asked, self.ledger.unknown, ended, answer, flaky)


def steps(search: Search[C, R], oracle: Oracle[C], *, start: C, terms: Terms[C] | None = None) -> Steps[C, R]:
    """Drive `search`, one step at a time, for a caller who wants to tell or record each; returns the result.

    `start` is asked first; raises `NotInteresting` if it is not. Verdicts that contradict each other end the
    drive as `Ended.FLAKY` with what was reached.
    """
    course = _Drive(oracle, start, terms or Terms())
    answer: R | None = None
    try:
        yield from course.begin()
        answer = yield from course.search(search)
        course.confirm()
    except _Cut as cut:
        return course.result(cut.ended, None)
    except Flaky as flaky:
        return course.result(Ended.FLAKY, answer, flaky)
    return course.result(Ended.FINISHED, answer)


def exhaust(generator: Generator[object, None, T]) -> T:
    """Run a generator to its end, for what it returns."""
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return cast(T, end.value)


def drive(
    search: Search[C, R], ask: Callable[[C], Verdict], *, start: C, terms: Terms[C] | None = None
) -> Reduced[C, R]:
    """Drive `search` by asking one candidate at a time; see `steps`."""
    return exhaust(steps(search, lambda candidate, ahead: ask(candidate), start=start, terms=terms))


def replay(search: Search[C, R], *, start: C, terms: Terms[C]) -> Reduced[C, R]:
    """Drive `search` from `terms.log` alone; it ends as `Ended.LOG` where the log does."""
    return exhaust(steps(search, lambda candidate, ahead: None, start=start, terms=terms))

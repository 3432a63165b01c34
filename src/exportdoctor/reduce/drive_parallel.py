"""Runs a search with several candidates in flight, and finds exactly what the serial driver finds.

The only place that speculates: it asks ahead within a batch, on the bet that the next candidate is not
interesting. A lost bet costs a question and never changes the result, because verdicts are taken in the
batch's order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from exportdoctor.reduce.drive import Terms, exhaust, steps
from exportdoctor.reduce.search import Search
from exportdoctor.reduce.verdict import Reduced, Verdict

C = TypeVar("C")
R = TypeVar("R")


class InFlight(Generic[C]):
    """The oracle over `submit`, which is like an executor's: candidate in, future of its verdict out.

    At most `width` futures are unfinished at a time. Those that are no longer wanted are cancelled; one that
    already runs is left to finish, and its verdict is used if the search comes back to that candidate.
    """

    def __init__(self, submit: Callable[[C], Future[Verdict]], *, width: int, key: Callable[[C], Hashable]) -> None:
        if width < 1:
            raise ValueError(f"width must be at least 1, not {width}")
        self._submit = submit
        self._width = width
        self._key = key
        self._futures: dict[Hashable, Future[Verdict]] = {}

    def __call__(self, candidate: C, ahead: Callable[[int], tuple[C, ...]]) -> Verdict:
        window = (candidate, *ahead(self._width - 1))
        self._cancel_all_but({self._key(wanted) for wanted in window})
        for wanted in window:
            if wanted is candidate or self._has_room():
                self._launch(wanted)
        return self._futures.pop(self._key(candidate)).result()

    def close(self) -> None:
        """Cancel whatever has not begun."""
        self._cancel_all_but(set())

    def _launch(self, candidate: C) -> None:
        if self._key(candidate) not in self._futures:
            self._futures[self._key(candidate)] = self._submit(candidate)

    def _has_room(self) -> bool:
        return sum(not future.done() for future in self._futures.values()) < self._width

    def _cancel_all_but(self, wanted: set[Hashable]) -> None:
        for key in self._futures.keys() - wanted:
            if self._futures[key].cancel():
                del self._futures[key]


def drive_parallel(
    search: Search[C, R],
    submit: Callable[[C], Future[Verdict]],
    *,
    width: int,
    start: C,
    terms: Terms[C] | None = None,
) -> Reduced[C, R]:
    """Drive `search` with up to `width` candidates in flight; see `steps`."""
    agreed = terms or Terms()
    oracle = InFlight(submit, width=width, key=agreed.key)
    try:
        return exhaust(steps(search, oracle, start=start, terms=agreed))
    finally:
        oracle.close()

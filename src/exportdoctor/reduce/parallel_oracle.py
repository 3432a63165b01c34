"""Judges several candidates at a time, and finds exactly what one at a time finds.

It asks ahead within a batch, on the assumption that the next candidate is not interesting. Where that is wrong, a
question is wasted and the result is the same, because verdicts are taken in the batch's order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from exportdoctor.reduce.verdict import Verdict

C = TypeVar("C")


class ParallelOracle(Generic[C]):
    """An oracle over `submit`, which is like an executor's: candidate in, future of its verdict out.

    At most `width` futures are unfinished at a time. Those that are no longer wanted are cancelled; one that
    already runs is left to finish, and its verdict is used if the search comes back to that candidate.
    """

    def __init__(self, submit: Callable[[C], Future[Verdict]], *, width: int) -> None:
        if width < 1:
            raise ValueError(f"width must be at least 1, not {width}")
        self._submit = submit
        self._width = width
        self._futures: dict[C, Future[Verdict]] = {}

    def __call__(self, candidate: C, ahead: Callable[[int], tuple[C, ...]]) -> Verdict:
        window = (candidate, *ahead(self._width - 1))
        self._cancel_all_but(set(window))
        for wanted in window:
            if wanted is candidate or self._has_room():
                self._launch(wanted)
        return self._futures.pop(candidate).result()

    def close(self) -> None:
        """Cancel whatever has not begun."""
        self._cancel_all_but(set())

    def _launch(self, candidate: C) -> None:
        if candidate not in self._futures:
            self._futures[candidate] = self._submit(candidate)

    def _has_room(self) -> bool:
        return sum(not future.done() for future in self._futures.values()) < self._width

    def _cancel_all_but(self, wanted: set[C]) -> None:
        for candidate in self._futures.keys() - wanted:
            if self._futures[candidate].cancel():
                del self._futures[candidate]

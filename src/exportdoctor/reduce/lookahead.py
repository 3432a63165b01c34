"""A batch that can be read ahead without being consumed.

The only place that buffers candidates: what is looked at early is still delivered later, once and in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

C = TypeVar("C")


class Lookahead(Iterator[C]):
    """An iterator over a batch, whose `ahead` names what comes next."""

    def __init__(self, batch: Iterable[C]) -> None:
        self._rest = iter(batch)
        self._seen: deque[C] = deque()

    def __next__(self) -> C:
        return self._seen.popleft() if self._seen else next(self._rest)

    def ahead(self, count: int, wanted: Callable[[C], bool]) -> tuple[C, ...]:
        """The next `count` candidates that are `wanted`, or as many as there are."""
        found = [candidate for candidate in self._seen if wanted(candidate)][:count]
        while len(found) < count:
            for candidate in self._rest:
                self._seen.append(candidate)
                if wanted(candidate):
                    found.append(candidate)
                break
            else:
                break
        return tuple(found)

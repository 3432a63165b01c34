"""What a search for a cure can ask next: sets of shims, each grown by one from where a failure was met."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

from exportdoctor.core.outcome import Outcome
from exportdoctor.engine.cure.catalogue import Ids, ShimCatalogue

Chain = tuple[tuple[str, Outcome], ...]
"""Each shim that was added, with the failure for which it was."""


@dataclass(frozen=True, order=True)
class Edge:
    """A set to ask, the cheapest first: the soundest, then the deepest, then by the newest shim's own rank."""

    price: tuple[int, int, int, int]
    shims: Ids = field(compare=False)
    chain: Chain = field(compare=False)

    @property
    def before(self) -> Outcome:
        """The failure for which its newest shim was added."""
        return self.chain[-1][1]


class Frontier:
    """The sets not asked yet, and the failures that were met."""

    def __init__(self, stock: ShimCatalogue) -> None:
        self.met: list[Outcome] = []
        self._stock = stock
        self._edges: list[Edge] = []
        self._seen: set[frozenset[str]] = set()
        self._numbers = itertools.count()

    def widen(self, shims: Ids, outcome: Outcome, *, chain: Chain) -> None:
        """From this failure on, each shim that may cure it can be added."""
        self.met.append(outcome)
        for shim in self._stock.fitting(outcome):
            added = frozenset((*shims, shim.id))
            if len(added) == len(shims) or added in self._seen or self._stock.clash(shim, shims):
                continue
            self._seen.add(added)
            every = self._stock.ordered((*shims, shim.id))
            price = (self._stock.rank(every), -len(chain), shim.rank, next(self._numbers))
            heapq.heappush(self._edges, Edge(price, every, (*chain, (shim.id, outcome))))

    def next(self) -> Edge | None:
        """The cheapest set that was not asked yet."""
        return heapq.heappop(self._edges) if self._edges else None

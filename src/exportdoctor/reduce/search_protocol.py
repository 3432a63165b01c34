"""The type of a search, and two ways to build a search out of others.

A search is a generator. It yields a batch: candidates in order of preference, lazily. It is sent the index of
the first interesting one, or None when the batch has none. It returns its answer.

A serial driver asks until the first `yes`; a parallel one asks several at a time, and takes the first `yes` *in the
batch's order*, which is the same. A search must therefore be a pure function of its replies, and a batch may be read
ahead of what is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar, cast

A = TypeVar("A")
C = TypeVar("C")
R = TypeVar("R")

Search: TypeAlias = Generator[Iterable[C], int | None, R]
Pass: TypeAlias = Callable[[C], Search[C, C]]


def lift(search: Search[A, R], embed: Callable[[A], C | None]) -> Search[C, R]:
    """The same search, shown to the driver as other candidates; one that `embed` gives None for is not interesting.

    Shrinking one number of a source file is `shrink_int`, each of whose numbers is embedded in the file that holds it.
    """
    reply: int | None = None
    while True:
        try:
            batch = search.send(reply)
        except StopIteration as end:
            return cast(R, end.value)
        offered: list[int] = []
        found = yield _embed_each(batch, embed, offered)
        reply = None if found is None else offered[found]


def _embed_each(batch: Iterable[A], embed: Callable[[A], C | None], offered: list[int]) -> Iterator[C]:
    """The embedded candidates; `offered` gets the index in `batch` of each."""
    for index, candidate in enumerate(batch):
        higher = embed(candidate)
        if higher is not None:
            offered.append(index)
            yield higher


def until_no_progress(start: C, passes: Sequence[Pass[C]]) -> Search[C, C]:
    """Every pass in turn, again and again, until a whole round changes nothing.

    A pass need not be a fixed point and never loops to one: what one pass leaves over is often what another
    makes possible. This terminates because each pass returns its argument or something strictly smaller.
    """
    current = start
    while True:
        before = current
        for shrink in passes:
            current = yield from shrink(current)
        if current == before:
            return current

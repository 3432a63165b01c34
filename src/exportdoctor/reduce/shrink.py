"""Makes single values smaller: an integer, the sizes of a shape or a configuration, one of several choices.

The only place that knows what a simpler value is. Invariant: a result is the value itself or an interesting
one that is simpler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import isqrt
from typing import TypeAlias, TypeVar

from exportdoctor.reduce.search import Pass, Search, lifted, until_no_progress

T = TypeVar("T")
Shape: TypeAlias = tuple[int, ...]


def shrink_int(value: int, *, lower: int = 0) -> Search[int, int]:
    """The smallest interesting integer from `lower` to `value`, if being interesting is monotone.

    In any case one whose predecessor is not interesting. The bound first, then the divisors of `value`, then
    binary descent from the smallest of these that holds. The divisors are there because sizes in a model
    divide each other: a width of 1280 with 16 heads can go to 80 or 16, and every step of a plain descent
    (640, 960, 1120, ...) may be no multiple of 16.
    """
    if value <= lower:
        return value
    tried = (lower, *(divisor for divisor in _divisors(value) if divisor > lower))
    index = yield tried
    if index == 0:
        return lower
    high, below = (value, tried[-1]) if index is None else (tried[index], tried[index - 1])
    while high - below > 1:
        middle = (below + high) // 2
        if (yield (middle,)) is None:
            below = middle
        else:
            high = middle
    return high


def _divisors(value: int) -> Iterator[int]:
    """The proper divisors above 1, ascending; of large numbers only those up to 1000, and their cofactors."""
    small = [divisor for divisor in range(2, min(isqrt(value), 1000) + 1) if value % divisor == 0]
    large = [value // divisor for divisor in reversed(small) if divisor * divisor != value]
    yield from small
    yield from large


def shrink_shape(shape: Shape, *, lower: int | Shape = 1) -> Search[Shape, Shape]:
    """Sizes towards their lower bounds until none can be made smaller by one, nor all equal ones together.

    Equal sizes are first shrunk together: a batch of 8 in the ids and in the mask, concatenated into one
    tuple of sizes, goes to 2 in both or in neither. The same serves the numbers of a configuration.
    """
    bounds = (lower,) * len(shape) if isinstance(lower, int) else lower
    if len(bounds) != len(shape):
        raise ValueError(f"{len(shape)} sizes need as many lower bounds, not {len(bounds)}")
    places: Pass[Shape] = partial(_shrink_each, bounds=bounds)
    groups: Pass[Shape] = partial(_shrink_equal, bounds=bounds)
    return until_no_progress(shape, (groups, places))


def _shrink_equal(shape: Shape, *, bounds: Shape) -> Search[Shape, Shape]:
    for value in dict.fromkeys(shape):
        places = tuple(place for place, size in enumerate(shape) if size == value)
        if len(places) > 1:
            shape = yield from _shrink_places(shape, places, bounds)
    return shape


def _shrink_each(shape: Shape, *, bounds: Shape) -> Search[Shape, Shape]:
    for place in range(len(shape)):
        shape = yield from _shrink_places(shape, (place,), bounds)
    return shape


def _shrink_places(shape: Shape, places: Shape, bounds: Shape) -> Search[Shape, Shape]:
    put = partial(_put, shape, places)
    lower = max(bounds[place] for place in places)
    return put((yield from lifted(shrink_int(shape[places[0]], lower=lower), put)))


def _put(shape: Shape, places: Shape, value: int) -> Shape:
    return tuple(value if place in places else size for place, size in enumerate(shape))


def shrink_choice(value: T, *, simpler: Sequence[T]) -> Search[T, T]:
    """The first of `simpler`, simplest first, that is interesting; `value` itself when none is."""
    index = yield simpler
    return value if index is None else simpler[index]

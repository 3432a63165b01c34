"""How an output size follows from the input sizes, guessed from two captures. A guess holds in both.

A size that differs between the captures has a rule that gives both values, or there is none and `infer_size` is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from exportdoctor.worker.capture.call_shapes import Sizes
from exportdoctor.worker.capture.dynamic_dims import InputDim


@dataclass(frozen=True)
class SizeRule:
    """`product of the spots * times // over + plus`. Without spots it is the constant `plus`."""

    spots: tuple[InputDim, ...] = ()
    times: int = 1
    over: int = 1
    plus: int = 0

    def size(self, taken: Sequence[Sizes]) -> Any:
        """The size for these inputs, symbolic where theirs are. Raises IndexError or TypeError for other inputs."""
        if not self.spots:
            return self.plus
        product: Any = 1
        for index, dimension in self.spots:
            sizes: Any = taken[index]
            product = product * (sizes if dimension is None else sizes[dimension])
        product = product * self.times
        return (product // self.over if self.over != 1 else product) + self.plus

    def code(self, taken: str) -> str:
        """The same as an expression; `taken` is that of the inputs."""
        spots = [f"{taken}[{index}]" + (f".shape[{d}]" if d is not None else "") for index, d in self.spots]
        product = " * ".join([*spots, *([str(self.times)] if spots and self.times != 1 else [])])
        over = f" // {self.over}" if spots and self.over != 1 else ""
        return f"{product}{over} + {self.plus}" if product and self.plus else f"{product}{over}" or str(self.plus)


@dataclass(frozen=True)
class SizeRules:
    """The rules that hold in both captures, and the size if it is the same in both (`constant`)."""

    rules: tuple[SizeRule, ...]
    constant: int | None

    def size(self, taken: Sequence[Sizes]) -> Any:
        """A symbolic size where a rule gives one, else the constant: one input's size may depend on data."""
        found = [rule.size(taken) for rule in self.rules]
        symbolic = next((size for size in found if type(size) is not int), None)
        return symbolic if symbolic is not None else self.constant if self.constant is not None else found[0]


def infer_size(size: int, other: int, taken: Sequence[Sizes], others: Sequence[Sizes]) -> SizeRules | None:
    """How `size` (in the other capture: `other`) follows from the inputs; None if no rule fits."""
    spots = dict(_input_sizes(taken, others))
    equal = tuple(SizeRule((spot,)) for spot, pair in spots.items() if pair == (size, other) and size > 1)
    if size == other:
        return SizeRules(equal, size)
    rule = next(iter(equal), None) or next(_derived_rules(size, other, spots), None)
    return None if rule is None else SizeRules((rule,), None)


def _input_sizes(taken: Sequence[Sizes], others: Sequence[Sizes]) -> Iterator[tuple[InputDim, tuple[int, int]]]:
    """Each size of the inputs in both captures."""
    for index, (one, other) in enumerate(zip(taken, others)):
        if isinstance(one, int) and isinstance(other, int):
            yield (index, None), (one, other)
        elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            yield from (((index, d), pair) for d, pair in enumerate(zip(one, other)))


def _derived_rules(size: int, other: int, spots: dict[InputDim, tuple[int, int]]) -> Iterator[SizeRule]:
    """Fractions and multiples, products of two, and differences, most likely first."""
    changing = {spot: pair for spot, pair in spots.items() if pair[0] != pair[1] and min(pair) > 0}
    for spot, (a, b) in changing.items():
        if size and other and a % size == 0 and a // size * other == b:
            yield SizeRule((spot,), over=a // size)
        if size % a == 0 and size // a * b == other:
            yield SizeRule((spot,), times=size // a)
    for spot, (a, b) in changing.items():
        for second, (c, d) in spots.items():
            times = size // (a * c) if a * c else 0
            if second != spot and times and times * a * c == size and times * b * d == other:
                yield SizeRule((spot, second), times=times)
    for spot, (a, b) in changing.items():
        if size - a == other - b:
            yield SizeRule((spot,), plus=size - a)

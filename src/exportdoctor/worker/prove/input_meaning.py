"""What the whole numbers of an input mean, by their use in eager and their range, never by the input's name."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

Meaning = Literal["mask", "index", "boundaries", "lengths", "factors", "number"]


@dataclass(frozen=True, kw_only=True)
class WholeNumbers:
    """`index`: places below `bound`. `boundaries`: cumulated lengths up to `bound`. `lengths`: they sum up to it.
    `factors`: the products of the rows do. `number`: anything else, of which only the range is known."""

    meaning: Meaning
    bound: int = 0


def meaning_of(leaf: torch.Tensor, others: Iterable[torch.Tensor], *, bound: int | None) -> WholeNumbers:
    """What a tensor of whole or truth values means. `others` are the call's tensors; `bound` is what it indexed."""
    values = leaf.flatten().tolist()
    if leaf.dtype == torch.bool:
        return WholeNumbers(meaning="mask")
    if bound is not None:
        return WholeNumbers(meaning="index", bound=bound)
    if len(values) > 1 and set(values) <= {0, 1} and leaf.dim() > 1:
        return WholeNumbers(meaning="mask")
    sizes = {size for other in others if other is not leaf for size in other.shape if size > 1}
    if leaf.dim() == 1 and len(values) > 1 and values == sorted(values) and values[0] >= 0 and values[-1] in sizes:
        return WholeNumbers(meaning="boundaries", bound=values[-1])
    if leaf.dim() == 2 and 1 < leaf.shape[1] < 5 and min(values) > 0:
        product = sum(math.prod(row) for row in leaf.tolist())
        if product in sizes:
            return WholeNumbers(meaning="factors", bound=product)
    if leaf.dim() == 1 and values and min(values) >= 0 and sum(values) in sizes:
        return WholeNumbers(meaning="lengths", bound=sum(values))
    return WholeNumbers(meaning="number")


def redraw_numbers(
    leaf: torch.Tensor, known: WholeNumbers, chance: random.Random, *, total: int, style: int = 5
) -> torch.Tensor:
    """Other numbers of the same meaning in a tensor of the same shape.

    `total` stands in place of the bound of boundaries; `style` is that of `draw_boundaries`.
    """
    values = [int(value) for value in leaf.flatten().tolist()]
    match known.meaning:
        case "mask":
            drawn = _draw_mask(leaf, chance)
        case "index":
            drawn = _draw_some(
                values, chance, lambda: chance.choice((0, known.bound - 1, chance.randrange(max(known.bound, 1))))
            )
        case "boundaries":
            drawn = draw_boundaries(len(values), total, chance, style)
        case "lengths":
            ends = draw_boundaries(len(values) + 1, total, chance, style)
            drawn = [after - before for before, after in itertools.pairwise(ends)]
        case "factors":
            drawn = [value for row in leaf.tolist() for value in _refactor(row, chance)]
        case _:
            drawn = _draw_numbers(values, chance)
    return torch.tensor(drawn, device=leaf.device).reshape(leaf.shape).to(leaf.dtype)


def draw_boundaries(count: int, total: int, chance: random.Random, style: int) -> list[int]:
    """Cumulated lengths, by style modulo six: one segment and empty ones behind it, or before it; all of length one;
    less than everything; not from zero; any."""
    if count < 2:
        return [total] * count
    inner, last = count - 2, total
    first = min(chance.randint(1, max(total // 2, 1)), total) if style % 6 == 4 else 0
    if style % 6 == 3:
        last = chance.randint(total // 2, max(total - 1, 0))
    middle = {
        0: [last] * inner,
        1: [first] * inner,
        2: [min(place + 1, last) for place in range(inner)],
    }.get(style % 6, sorted(chance.randint(first, last) for _ in range(inner)))
    return [first, *middle, last]


def _draw_mask(leaf: torch.Tensor, chance: random.Random) -> list[int]:
    """Rows with padding on the right, on the left, holes, or nothing masked."""
    width = leaf.shape[-1] if leaf.dim() else 1
    rows = []
    for _ in range(leaf.numel() // max(width, 1)):
        count = chance.randint(0, max(width - 1, 0)) if width > 1 else chance.randint(0, 1)
        match chance.randrange(4):
            case 0:
                row = [1] * (width - count) + [0] * count
            case 1:
                row = [0] * count + [1] * (width - count)
            case 2:
                row = [int(chance.random() < 0.7) for _ in range(width)]
            case _:
                row = [1] * width if width > 1 else [chance.randint(0, 1)]
        rows += row
    return rows


def _draw_some(values: list[int], chance: random.Random, draw: Callable[[], int]) -> list[int]:
    """Other values in all places, in some or in one: the fewer, the sooner eager takes them.

    Half of the time the most frequent value stays: it may stand for something else, such as a place to fill.
    """
    share, often = chance.choice((1.0, 0.3, 0.0)), max(values, key=values.count, default=0)
    kept = often if chance.random() < 0.5 and 1 < values.count(often) < len(values) else None
    sure = chance.choice([place for place, value in enumerate(values) if value != kept]) if values else -1
    return [
        draw() if place == sure or (value != kept and chance.random() < share) else value
        for place, value in enumerate(values)
    ]


def _draw_numbers(values: list[int], chance: random.Random) -> list[int]:
    """Numbers around those there, up to twice the largest; negative ones only where some are, zero only below two."""
    lowest = min(values, default=0)
    least = -2 * abs(lowest) if lowest < 0 else min(lowest, 1)
    most = 2 * abs(max(values, default=0)) + 3
    if chance.random() < 0.3:
        kept = list(values)
        chance.shuffle(kept)
        return kept if kept != values else [max(value + 1, least) for value in values]
    return _draw_some(values, chance, lambda: chance.choice((least, most, chance.randint(least, most))))


def _refactor(row: list[int], chance: random.Random) -> list[int]:
    """Other factors of the same product, or the same ones in another order."""
    if chance.random() < 0.4:
        chance.shuffle(row)
        return row
    rest, found = math.prod(row), []
    for _ in row[1:]:
        factor = chance.choice([one for one in range(1, rest + 1) if rest % one == 0])
        found.append(factor)
        rest //= factor
    return [*found, rest]


def mask_among(leaves: Mapping[str, torch.Tensor], meanings: Mapping[str, WholeNumbers]) -> str | None:
    """The path of the tensor whose zeros mask rows of a batch: whole numbers or truth values, (batch, positions)."""
    found = [path for path, known in meanings.items() if known.meaning == "mask" and leaves[path].dim() == 2]
    return found[0] if found else None

"""Sizes that whole numbers among the inputs describe: the patches of pictures by a grid, rows by their lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_MOST_NUMBERS = 192


@dataclass(frozen=True, kw_only=True)
class DescribedSize:
    """The first size of a leaf is the sum over another leaf's rows of their products, in each known input set.

    `leaf` and `by` are the leaves' numbers; that of the whole numbers has the shape (rows,) or (rows, up to 3).
    """

    leaf: int
    by: int

    def size(self, leaves: Sequence[Any], rows: int | None = None) -> int:
        """What the numbers say; with `rows`, what so many of them do if they are cut or repeated from the start."""
        numbers: torch.Tensor = leaves[self.by]
        times, rest = divmod(len(numbers) if rows is None else rows, len(numbers))
        return times * _total_of(numbers) + _total_of(numbers[:rest])

    def numbers(self, leaves: Sequence[Any], size: int) -> torch.Tensor | None:
        """The whole numbers with one of them changed so that they describe this size; None where that is not possible.

        Of the places the last one that can be changed is taken.
        """
        numbers: torch.Tensor = leaves[self.by]
        rows = numbers.reshape(len(numbers), -1).tolist()
        for row in reversed(range(len(rows))):
            others = sum(math.prod(one) for at, one in enumerate(rows) if at != row)
            for column in reversed(range(len(rows[row]))):
                rest = math.prod(one for at, one in enumerate(rows[row]) if at != column)
                if rest and size >= others and (size - others) % rest == 0:
                    changed = numbers.clone()
                    changed.view(len(rows), -1)[row, column] = (size - others) // rest
                    return changed
        return None

    def near(self, leaves: Sequence[Any]) -> list[int]:
        """Sizes that numbers can describe: the last row's last number 0, 1, 2, up to two more, and doubled."""
        row = leaves[self.by].reshape(len(leaves[self.by]), -1)[-1].tolist()
        others, rest = self.size(leaves) - math.prod(row), math.prod(row[:-1])
        last = row[-1]
        return [others + rest * one for one in dict.fromkeys((0, 1, 2, last - 1, last + 1, last + 2, 2 * last))]


def find_described(known: Sequence[Sequence[Any]]) -> Iterator[DescribedSize]:
    """The first sizes that whole numbers describe in all of these leaves of input sets, of two sizes at least."""
    first = known[0]
    for by, numbers in enumerate(first):
        if not _may_describe(numbers):
            continue
        for leaf, tensor in enumerate(first):
            if leaf == by or not isinstance(tensor, torch.Tensor) or not tensor.dim():
                continue
            pairs = [(len(one[leaf]), _total_of(one[by])) for one in known if _may_describe(one[by])]
            if len(pairs) == len(known) and all(size == said for size, said in pairs) and len(set(pairs)) > 1:
                yield DescribedSize(leaf=leaf, by=by)


def _may_describe(numbers: Any) -> bool:
    return (
        isinstance(numbers, torch.Tensor)
        and not numbers.dtype.is_floating_point
        and numbers.dtype not in (torch.bool, torch.complex64, torch.complex128)
        and (numbers.dim() == 1 or (numbers.dim() == 2 and numbers.shape[1] <= 3))
        and 0 < numbers.numel() <= _MOST_NUMBERS
    )


def _total_of(numbers: torch.Tensor) -> int:
    return sum(math.prod(row) for row in numbers.view(len(numbers), math.prod(numbers.shape[1:])).tolist())

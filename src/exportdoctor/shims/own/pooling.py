"""Adaptive pooling by operators of ONNX: windows whose places follow from the sizes alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

_MOST_WINDOWS = 64


def adapt_mean(_: Any, values: Any, output_size: Sequence[int]) -> Any:
    """As `torch.nn.functional.adaptive_avg_pool3d`; NotImplemented where there are too many unequal windows."""
    sizes = values.shape[-len(output_size) :]
    windows = _equal_windows(values, sizes, output_size)
    if windows is not None:
        return windows.mean(-1)
    parts = _unequal_windows(values, sizes, output_size)
    return NotImplemented if parts is None else _in_place([one.mean(-1) for one, _ in parts], output_size)


def adapt_dynamic_mean(_: Any, values: Any, output_size: Sequence[int]) -> Any:
    """As `torch.nn.functional.adaptive_avg_pool2d` of dynamic sizes: torch.onnx keeps the windows of the example's."""
    if all(isinstance(size, int) for size in values.shape[-len(output_size) :]):
        return NotImplemented
    return adapt_mean(_, values, output_size)


def adapt_max(_: Any, values: Any, output_size: Sequence[int], *, dims: int) -> Any:
    """As `torch.nn.functional.adaptive_max_pool1d` and its like, with the places; NotImplemented where there are too
    many unequal windows."""
    import torch

    sizes, output = values.shape[-dims:], tuple(output_size)
    windows = _equal_windows(values, sizes, output)
    if windows is not None:
        places = torch.arange(math.prod(sizes), device=values.device).reshape(sizes)
        places = _equal_windows(places, sizes, output).expand(windows.shape)
        best = windows.argmax(-1, keepdim=True)
        return windows.amax(-1), places.gather(-1, best).squeeze(-1)
    parts = _unequal_windows(values, sizes, output)
    if parts is None:
        return NotImplemented
    found = [(one.amax(-1), place[one.argmax(-1)]) for one, place in parts]
    return tuple(_in_place([each[which] for each in found], output) for which in range(2))


def _equal_windows(values: Any, sizes: Sequence[Any], output: Sequence[int]) -> Any:
    """The values (..., *output, values of a window); None where the windows are of several sizes, or not known to be
    of one."""
    if not all(
        out == 1 or (isinstance(size, int) and size % out == 0) for size, out in zip(sizes, output, strict=True)
    ):
        return None
    rest = values.dim() - len(sizes)
    split = [part for size, out in zip(sizes, output, strict=True) for part in (out, size // out)]
    apart = values.reshape(*values.shape[:rest], *split)
    outer, inner = (range(rest + first, apart.dim(), 2) for first in range(2))
    return apart.permute(*range(rest), *outer, *inner).flatten(rest + len(sizes))


def _unequal_windows(values: Any, sizes: Sequence[Any], output: Sequence[int]) -> list[tuple[Any, Any]] | None:
    """The values of each window (..., values of it), and their places; None where these are many."""
    import torch

    if math.prod(output) > _MOST_WINDOWS:
        return None
    places = torch.arange(math.prod(sizes), device=values.device).reshape(tuple(sizes))
    found = []
    for at in itertools.product(*map(range, output)):
        ends = zip(at, sizes, output, strict=True)
        window = tuple(slice(i * size // out, ((i + 1) * size + out - 1) // out) for i, size, out in ends)
        found.append((values[(..., *window)].flatten(-len(sizes)), places[window].flatten()))
    return found


def _in_place(parts: Sequence[Any], output: Sequence[int]) -> Any:
    """What was computed of each window, in the order of the windows."""
    import torch

    stacked = torch.stack(list(parts), -1)
    return stacked.reshape(*stacked.shape[:-1], *output)

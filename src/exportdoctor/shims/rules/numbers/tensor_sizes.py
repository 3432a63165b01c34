"""What a call of torch takes as sizes: `x.view(height, -1)`, `torch.zeros(count)` and `x[:count]`.

Of a tensor that is given as one torch reads the number as `item` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_METHODS = frozenset({
    "view", "reshape", "expand", "repeat", "tile", "narrow", "unflatten", "split", "broadcast_to", "interpolate",
    "new_zeros", "new_ones", "new_empty", "new_full",
})  # fmt: skip
"""Their first argument is a tensor of any kind."""
_FACTORIES = frozenset({"zeros", "ones", "empty", "rand", "randn", "full"})
SHAPES = _FACTORIES | {"view", "reshape", "expand", "interpolate", "new_zeros", "new_ones", "new_empty", "new_full"}
"""Whose numbers are sizes of what they give, and neither places nor counts."""
_ONE_SIZE = frozenset({"new_full", "full"})
"""A value follows the size."""
_SIZES_BY_NAME = frozenset({"size", "shape", "sizes", "split_size_or_sections", "start", "length", "dims"})


def replace_sizes(
    func: Any, args: Any, kwargs: Any, number: Callable[[Any], Any], *, pads: bool = False
) -> tuple[Any, Any]:
    """The arguments of the call, with `number` of each size that is symbolic or a whole number in a tensor.

    With `pads` also of what `pad` adds, which may be negative.
    """
    name = getattr(func, "__name__", "")
    if pads and name == "pad":
        kwargs = {key: _in_sizes(value, number) if key == "pad" else value for key, value in kwargs.items()}
        return (*args[:1], *_in_sizes(args[1:2], number), *args[2:]), kwargs
    if name == "__getitem__":
        return (args[0], _in_slices(args[1], number)), kwargs
    if name not in _METHODS and name not in _FACTORIES:
        return args, kwargs
    first = 1 if name in _METHODS else 0
    last = first + 1 if name in _ONE_SIZE else len(args)
    sizes = {key: _in_sizes(value, number) for key, value in kwargs.items() if key in _SIZES_BY_NAME}
    return (*args[:first], *_in_sizes(args[first:last], number), *args[last:]), {**kwargs, **sizes}


def _in_sizes(value: Any, number: Callable[[Any], Any]) -> Any:
    if _is_number(value):
        return number(value)
    if type(value) in (tuple, list):
        return type(value)(_in_sizes(one, number) for one in value)
    return value


def _in_slices(index: Any, number: Callable[[Any], Any]) -> Any:
    if type(index) in (tuple, list):
        return type(index)(_in_slices(one, number) if isinstance(one, slice) else one for one in index)
    if isinstance(index, slice):
        return slice(*(_in_sizes(one, number) for one in (index.start, index.stop, index.step)))
    return index


def _is_number(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype in (torch.int64, torch.int32)
    return isinstance(value, torch.SymInt)

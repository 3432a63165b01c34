"""Inputs that a submodule gets from its caller and that no program takes: a dtype, a device, a function.

In the whole model they are values of Python while it is traced, and so they are where the submodule is exported alone.
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.trees import tree_flatten, tree_leaves, tree_map, tree_unflatten

_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator, enum.Enum, type, bytes)
_MADE_OF_OTHERS = (slice, range, functools.partial, types.FunctionType)
"""Of all these torch makes neither inputs of a program nor fixed values in it. A class of the user's or of a library is
not among them: whether its objects are more than a value only their code says."""
_DEEPEST = 4


@contextmanager
def hold_constant_inputs(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Within it `module.forward` has those of its inputs that no program takes by itself, and is given None for each.

    Yields the inputs of the call as they are given now. Other objects are given as they are, and so are slices, ranges
    and functions that may have been made with the example's sizes.
    """
    if not any(map(_is_constant, tree_leaves((args, kwargs)))):
        yield args, kwargs
        return
    forward = module.forward

    @functools.wraps(forward)
    def with_constants(*given: Any, **named: Any) -> Any:
        given = (*map(_put_back, args, given), *given[len(args) :])
        return forward(*given, **{name: _put_back(kwargs.get(name), value) for name, value in named.items()})

    with_constants.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    with patch_attribute(module, "forward", with_constants):
        yield tree_map(lambda leaf: None if _is_constant(leaf) else leaf, (args, kwargs))


def _put_back(before: Any, value: Any) -> Any:
    """The value of an argument with the constants that there were in it."""
    leaves, layout = tree_flatten(before)
    now = tree_leaves(value)
    if len(now) != len(leaves) or not any(map(_is_constant, leaves)):
        return value
    return tree_unflatten([held if _is_constant(held) else one for held, one in zip(leaves, now, strict=True)], layout)


def _is_constant(leaf: Any) -> bool:
    if isinstance(leaf, _MADE_OF_OTHERS):
        return not any(map(_may_be_size, _parts_of(leaf)))
    return isinstance(leaf, (*_VALUES, types.BuiltinFunctionType))


def _parts_of(value: Any) -> list[Any]:
    """What a slice, a range or a function was made with."""
    if isinstance(value, functools.partial):
        return [*value.args, *value.keywords.values(), *_parts_of(value.func)]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    return [value.start, value.stop, value.step] if isinstance(value, slice | range) else []


def _may_be_size(part: Any, depth: int = 0) -> bool:
    """Whether it may follow from the sizes or the values of the example: it is another one for other inputs then."""
    if isinstance(part, (bool, str, float, type(None), *_VALUES, types.BuiltinFunctionType)):
        return False
    if isinstance(part, _MADE_OF_OTHERS) and depth < _DEEPEST:
        return any(_may_be_size(one, depth + 1) for one in _parts_of(part))
    return not (isinstance(part, int) and -1 <= part <= 1)

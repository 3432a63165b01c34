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

_VALUES = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator, enum.Enum, type, slice, range, bytes,
    types.FunctionType, types.BuiltinFunctionType, functools.partial,
)  # fmt: skip
"""Of these torch makes neither inputs of a program nor fixed values in it. A class of the user's or of a library is not
among them: whether its objects are more than a value only their code says."""


@contextmanager
def hold_constant_inputs(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Within it `module.forward` has those of its inputs that no program takes by itself, and is given None for each.

    Yields the inputs of the call as they are given now. Other objects are given as they are.
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
    return isinstance(leaf, _VALUES)

"""Which dimensions of a submodule's inputs are dynamic: those that differ between two captures at different sizes.

Leaves are counted in pytree's order, so that a leaf's index means the same here, in reports and in `dynamic_shapes`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.core.protocol.scan import InputFact
from exportdoctor.shims.torch_export import bundled_keywords, spell_out
from exportdoctor.torch_internals.pytree_registry import flatten_once, node_kind, shapes_of_children
from exportdoctor.torch_internals.trees import leaves_with_paths, path_text, place_of

Dims = Mapping[int, tuple[int, ...]]
"""Leaf index -> its dynamic dimensions; a dynamic Python int has the empty tuple."""

InputDim = tuple[int, int | None]
"""Leaf index and dimension; the dimension of a Python int is None."""


def leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Every leaf of a call with its path, as `args[0]` or `kwargs['mask']`; unregistered objects are leaves."""
    return [
        (("args", "kwargs")[place_of(root)] + path_text(tuple(rest)), leaf)
        for (root, *rest), leaf in leaves_with_paths((args, kwargs))
    ]


def differing_dims(first: list[tuple[str, Any]], second: list[tuple[str, Any]]) -> dict[int, tuple[int, ...]] | None:
    """The dimensions in which two captures of one call differ; None if the calls cannot be compared."""
    if [path for path, _ in first] != [path for path, _ in second]:
        return None
    found: dict[int, tuple[int, ...]] = {}
    for index, ((_, a), (_, b)) in enumerate(zip(first, second, strict=True)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dim() == b.dim():
            dims = tuple(d for d in range(a.dim()) if a.shape[d] != b.shape[d])
            if dims:
                found[index] = dims
        elif type(a) is int and type(b) is int and a != b:
            found[index] = ()
    return found


def each_dim(dims: Dims) -> Iterator[InputDim]:
    """Every dynamic dimension, one at a time."""
    for index, many in dims.items():
        yield from ((index, dimension) for dimension in many or (None,))


def size_at(leaves: list[tuple[str, Any]], place: InputDim) -> int:
    """The size of that dimension, or the value of that Python int."""
    index, dimension = place
    return int(leaves[index][1] if dimension is None else leaves[index][1].shape[dimension])


def has_size_below_two(leaves: list[tuple[str, Any]], dims: Dims) -> bool:
    """Whether a dynamic dimension has size 0 or 1 here, which torch specializes to a constant."""
    return any(leaves[index][1].shape[d] < 2 for index, many in dims.items() for d in many)


def dynamic_shapes_of(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dims: Mapping[InputDim, Any]
) -> dict[str, Any] | None:
    """`dynamic_shapes` for `torch.export.export` with these `dims`; None if all sizes are static.

    torch expects one entry for each argument of forward, in containers of the same types, and for a registered class
    the container of its children.
    """
    if not dims:
        return None
    counter = itertools.count()
    spec_args = tuple(_spec(value, counter, dims) for value in args)
    spec_kwargs = {name: _spec(value, counter, dims) for name, value in kwargs.items()}
    return dict(inspect.signature(module.forward).bind(*spec_args, **spec_kwargs).arguments)


def _spec(value: Any, counter: Iterator[int], dims: Mapping[InputDim, Any]) -> Any:
    if node_kind(value) == "leaf":
        leaf = next(counter)
        mine = {dimension: dim for (index, dimension), dim in dims.items() if index == leaf}
        return mine.get(None, mine or None)
    return shapes_of_children(value, [_spec(child, counter, dims) for child in flatten_once(value)[0]])


@contextmanager
def spell_out_kwargs(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Within it, every keyword of this call is a named parameter of `module.forward`.

    torch 2.13 matches `dynamic_shapes` once with the keywords bundled as forward's signature has them and once spelled
    out; no spec fits both, and an export that would pass ends in a bare AssertionError
    (`torch.export._trace._get_range_constraints`). The submodule is not to blame: its caller chose the keywords.
    """
    signature = inspect.signature(module.forward)
    names = bundled_keywords(signature, args, kwargs)
    if not names:
        yield
        return
    forward = module.forward

    @functools.wraps(forward)
    def spelled_out(*given: Any, **named: Any) -> Any:
        return forward(*given, **named)

    spelled_out.__signature__ = spell_out(signature, names)  # type: ignore[attr-defined]
    with patch_attribute(module, "forward", spelled_out):
        yield


@contextmanager
def take_sizes_as_tuples(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Within it `module.forward` takes a tuple for each `torch.Size` of this call, and runs with the `torch.Size`.

    torch 2.13 accepts no `dynamic_shapes` for a `torch.Size`: they are checked against a tuple, and then against the
    list into which pytree takes it apart. Yields the inputs of the call as they are given now.
    """
    if not _has_sizes((args, kwargs)):
        yield args, kwargs
        return
    forward = module.forward

    @functools.wraps(forward)
    def with_sizes(*given: Any, **named: Any) -> Any:
        given = tuple(map(_as_sizes, args, given)) + given[len(args) :]
        return forward(*given, **{name: _as_sizes(kwargs.get(name), value) for name, value in named.items()})

    with_sizes.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    with patch_attribute(module, "forward", with_sizes):
        yield _as_tuples(args), _as_tuples(kwargs)


def _has_sizes(value: Any) -> bool:
    if isinstance(value, torch.Size):
        return True
    items = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return any(map(_has_sizes, items))


def _as_tuples(value: Any) -> Any:
    if isinstance(value, torch.Size):
        return tuple(value)
    if type(value) is dict:
        return {key: _as_tuples(item) for key, item in value.items()}
    return type(value)(map(_as_tuples, value)) if type(value) in (list, tuple) else value


def _as_sizes(before: Any, value: Any) -> Any:
    """The value with a `torch.Size` wherever there was one."""
    if isinstance(before, torch.Size) and type(value) is tuple:
        return torch.Size(value)
    if type(before) is type(value) is dict:
        return {key: _as_sizes(before.get(key), item) for key, item in value.items()}
    if type(before) is type(value) and type(value) in (list, tuple) and len(before) == len(value):
        return type(value)(map(_as_sizes, before, value))
    return value


def input_facts(leaves: list[tuple[str, Any]], axes: Mapping[InputDim, str]) -> tuple[InputFact, ...]:
    """The leaves as they appear in a report."""
    return tuple(_fact(index, path, leaf, axes) for index, (path, leaf) in enumerate(leaves))


def _fact(index: int, path: str, leaf: Any, axes: Mapping[InputDim, str]) -> InputFact:
    mine = {dimension: name for (at, dimension), name in axes.items() if at == index}
    names = tuple(mine.values())
    if isinstance(leaf, torch.Tensor):
        dtype = str(leaf.dtype).removeprefix("torch.")
        dynamic = tuple(dimension for dimension in mine if dimension is not None)
        return InputFact(
            path=path, kind=dtype, shape=() if leaf.is_nested else tuple(leaf.shape), dynamic=dynamic, axes=names
        )
    plain = leaf is None or isinstance(leaf, (bool, int, float, str))
    return InputFact(path=path, kind=type(leaf).__name__, value=repr(leaf)[:60] if plain else None, axes=names)

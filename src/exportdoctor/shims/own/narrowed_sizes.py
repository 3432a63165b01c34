"""Dynamic sizes that are declared wider than the code takes: narrowed as torch suggests, if eager takes no others.

A position table of 64 rows, an image whose sides must be multiples of 32: eager raises for other sizes, and torch
refuses a declaration that allows them. Sizes around those of the example and around the ends of what the program takes
are run: each that the program refuses must be refused by eager.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from exportdoctor.core.failure.messages import PROPOSES_RELATIONS
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, Inputs, shapes_by_name
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.targets.eager import copy_inputs, restore_afterwards
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.trees import tree_leaves

_LARGEST = 4096
"""A size beyond it is not run."""
_SMALL = (1, 2, 3, 5, 7)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    shapes = shapes_by_name(call)
    names = sorted({name for dim in tree_leaves(shapes) if (name := _root_name(dim))})
    if shapes is None or not names:
        raise NotApplicable("no dynamic dimension has a name")

    def check(program: Any) -> None:
        if any(map(is_fake, tree_leaves((call.args, call.kwargs)))):
            return  # asked of the small model
        module, asked = program.module(), False
        for name in names:
            for size in _sizes_to_ask(call.named, shapes, name, program):
                inputs = _resized_inputs(call, shapes, name, size)
                if not _takes(module, inputs):
                    asked = True
                    if _takes(call.module, inputs):
                        raise NotApplicable(f"eager takes {name} = {size}, which the program refuses")
        if not asked:
            raise NotApplicable("no size was found that the program refuses")

    yield replace(call.with_options(suggested_fixes="relations"), checks=(*call.checks, check))


def _resized_inputs(call: ExportCall, shapes: Mapping[str, Any], name: str, size: int) -> Inputs:
    """The example with that size, its arguments by position and by keyword as they are in the call."""
    resized = {key: _resize(value, shapes.get(key), name, size) for key, value in call.named.items()}
    by_position = list(resized)[: len(call.args)]
    return tuple(map(resized.pop, by_position)), resized


def _takes(module: Any, inputs: Inputs) -> bool:
    import torch

    with torch.no_grad(), restore_afterwards(module):
        args, kwargs = copy_inputs(inputs)
        try:
            module(*args, **kwargs)
        except Exception:
            return False
    return True


def _sizes_to_ask(named: Mapping[str, Any], shapes: Mapping[str, Any], name: str, program: Any) -> list[int]:
    """Small sizes, those around the example's and those around the ends of the ranges in the program."""
    example = {size for key, value in named.items() for size in _sizes_of(value, shapes.get(key), name)}
    ends = {end for one in program.range_constraints.values() for end in (one.lower, one.upper)}
    known = {*example, *(int(end) for end in ends if getattr(end, "is_Integer", isinstance(end, int)))}
    near = {size + step for size in known for step in (-1, 0, 1)} | {2 * size for size in example}
    return sorted(size for size in {*_SMALL, *near} - example if 0 < size <= _LARGEST)


def _root_name(dim: Any) -> str:
    """The name of the dimension that this one is, or is computed from; empty for a hint, which has none."""
    return getattr(getattr(dim, "root", dim), "__name__", "") if hasattr(dim, "__name__") else ""


def _size_at(dim: Any, size: int) -> int:
    return int(dim.fn(size)) if hasattr(dim, "root") else size


def _places(value: Any, shape: Any) -> Iterator[tuple[Any, Any]]:
    """The values within a value, each with its part of the dynamic shapes."""
    if isinstance(shape, Mapping) and isinstance(value, Mapping):
        yield from ((value[key], shape.get(key)) for key in value)
    elif isinstance(shape, list | tuple) and isinstance(value, list | tuple):
        yield from zip(value, shape, strict=False)


def _dims(value: Any, shape: Any) -> dict[int, Any]:
    """The dynamic dimensions of a tensor."""
    items = shape.items() if isinstance(shape, Mapping) else enumerate(shape) if isinstance(shape, list | tuple) else ()
    return {place: dim for place, dim in items if _root_name(dim)} if hasattr(value, "shape") else {}


def _sizes_of(value: Any, shape: Any, name: str) -> Iterator[int]:
    """The sizes of the dimensions that are the one of that name."""
    for place, dim in _dims(value, shape).items():
        if _root_name(dim) == name and not hasattr(dim, "root"):
            yield int(value.shape[place])
    for one, part in _places(value, shape):
        yield from _sizes_of(one, part, name)


def _resize(value: Any, shape: Any, name: str, size: int) -> Any:
    """The value with that size: cut off, or its elements repeated."""
    for place, dim in _dims(value, shape).items():
        if _root_name(dim) == name:
            value = _cut_or_repeat(value, place, _size_at(dim, size))
    if isinstance(shape, Mapping) and isinstance(value, dict):
        return {key: _resize(one, shape.get(key), name, size) for key, one in value.items()}
    if isinstance(shape, list | tuple) and type(value) in (list, tuple):
        return type(value)(_resize(one, part, name, size) for one, part in zip(value, shape, strict=False))
    return value


def _cut_or_repeat(tensor: Any, place: int, size: int) -> Any:
    import torch

    index = torch.arange(size, device=tensor.device) % max(1, tensor.shape[place])
    return tensor.detach().index_select(place, index)


SHIM = Shim(
    id="narrow-sizes",
    title="Declares only the sizes that eager takes, as torch suggests",
    soundness="exact",
    enter=_enter,
    does=(
        "Where a dimension is declared wider than the code takes, torch suggests a bound or a relation, which is used. "
        "Sizes around the example's and around the ends of what the program takes are tried: not applicable where "
        "eager takes one that the program refuses."
    ),
    cures=(Cure(message=PROPOSES_RELATIONS),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html",
    retire="the dynamic shapes are declared as the code takes them",
    rank=10,
    conflicts=("suggested-relations", "suggested-constants", "auto-dims", "static-dim"),
    replaces=(
        Replacement(
            target="the dynamic shapes",
            before='{"input_ids": {1: Dim("length")}}\n',
            after='{"input_ids": {1: Dim("length", max=64)}}\n',
        ),
    ),
)

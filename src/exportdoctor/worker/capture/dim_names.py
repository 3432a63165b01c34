"""Names for the dynamic dimensions of every call, and dynamic shapes with only some of them.

A submodule's dimension has the name of the root's axis with the same sizes in both captures. One that matches no axis,
such as a product of two, is named by its position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from exportdoctor.targets.built import BuiltPart, Inputs
from exportdoctor.targets.sizes.dynamic_shapes import dynamic_dims, map_inputs
from exportdoctor.worker.capture.dynamic_dims import InputDim, each_dim, leaves_of, size_at
from exportdoctor.worker.capture.forward_hooks import Call


def name_axes(built: BuiltPart, root: Call, calls: Iterable[Call]) -> None:
    """Fill `axes` of the root's call and of its submodules' calls."""
    root.axes = dict(_root_axes(built))
    by_sizes = _names_by_sizes(built, root.axes)
    for call in (call for call in calls if call.dims):
        leaves = leaves_of(call.args, call.kwargs)
        for place in each_dim(call.dims):
            names = by_sizes.get(call.sizes.get(place, (0, 0)), ())
            call.axes[place] = " or ".join(names) or _dim_name(leaves[place[0]][0], place[1])


def declared_dims(built: BuiltPart) -> dict[InputDim, Any]:
    """The `Dim` or hint that the target declares for each dynamic dimension of the root's inputs."""
    return {place: dim for place, (_, dim) in _dims_by_input(built).items()}


def select_dims(call: Call, dims: Mapping[InputDim, Any], dynamic: tuple[str, ...] | None) -> dict[InputDim, Any]:
    """Of `dims`, those of the axes named in `dynamic`; all of them for None."""
    return {place: dim for place, dim in dims.items() if dynamic is None or call.axes.get(place) in dynamic}


def dims_of_submodule(built: BuiltPart, call: Call) -> dict[InputDim, Any]:
    """`Dim.DYNAMIC` for each dimension of a submodule's call that differs between the captures; `Dim.AUTO`, by which
    torch may fix it, where all axes that it may be are declared so."""
    declared = declared_dims(built)
    auto = {name for place, name in _root_axes(built) if _is_auto(declared[place])}
    others = {name for place, name in _root_axes(built) if not _is_auto(declared[place])}

    def hint(place: InputDim) -> Any:
        names = {call.axes.get(place, ""), *call.axes.get(place, "").split(" or ")}
        known = names & (auto | others)
        is_auto = not known & others if known else not others
        return torch.export.Dim.AUTO if auto and is_auto else torch.export.Dim.DYNAMIC

    return {place: hint(place) for place in each_dim(call.dims)}


def _is_auto(dim: Any) -> bool:
    return getattr(getattr(dim, "type", None), "name", None) == "AUTO"


def _root_axes(built: BuiltPart) -> Iterable[tuple[InputDim, str]]:
    called = {place: axis for axis, places in built.axes.items() for place in places}
    for place, (path, dim) in _dims_by_input(built).items():
        text = _dim_name(path, place[1])
        yield place, called.get(text) or str(getattr(dim, "__name__", text))


def _dims_by_input(built: BuiltPart) -> dict[InputDim, tuple[str, Any]]:
    """Leaf and dimension -> the leaf's path and its `Dim`; empty if the leaves cannot be matched with pytree's."""
    found: dict[InputDim, tuple[str, Any]] = {}
    seen: list[Any] = []

    def note(path: str, leaf: Any, spec: Any) -> Any:
        for dimension, dim in dynamic_dims(leaf, spec).items():
            found[len(seen), dimension] = (path, dim)
        seen.append(leaf)
        return leaf

    if built.dynamic_shapes:
        map_inputs(note, built.module, (built.args, built.kwargs), built.dynamic_shapes)
    leaves = [leaf for _, leaf in leaves_of(built.args, built.kwargs)]
    same = len(seen) == len(leaves) and all(one is other for one, other in zip(seen, leaves, strict=True))
    return found if same else {}


def _names_by_sizes(built: BuiltPart, axes: Mapping[InputDim, str]) -> dict[tuple[int, int], tuple[str, ...]]:
    """The names of the root's axes by their sizes in both captures."""
    if not built.more_inputs or not axes:
        return {}
    mine, theirs = _leaves((built.args, built.kwargs)), _leaves(built.more_inputs[0])
    if len(mine) != len(theirs):
        return {}
    found: dict[tuple[int, int], dict[str, None]] = {}
    for place, name in axes.items():
        found.setdefault((size_at(mine, place), size_at(theirs, place)), {})[name] = None
    return {sizes: tuple(names) for sizes, names in found.items()}


def _leaves(inputs: Inputs) -> list[tuple[str, Any]]:
    return leaves_of(*inputs)


def _dim_name(path: str, dimension: int | None) -> str:
    return path if dimension is None else f"{path}[{dimension}]"

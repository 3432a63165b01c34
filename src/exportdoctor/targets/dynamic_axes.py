"""The only place that turns named axes into what `torch.export` takes, and back into words.

A preset names each dynamic axis of each input once; the dynamic shapes, the title and the report's list of
axes are derived from that, so they cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_DERIVED = re.compile(r"\*| [+-] ")

Axes = Mapping[str, Any]
"""Input name -> {dimension: axis name}, or a list of those for an input with several tensors in it."""


def dynamic_shapes(axes: Axes, *, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The `dynamic_shapes` of these keyword arguments: `Dim.DYNAMIC` at each named axis, else `None`.

    `Dim.DYNAMIC` and not a named `Dim`: torch may then infer relations such as a multiple of four, and still
    refuses to freeze the dimension.
    """
    return {name: _shape(axes.get(name)) for name in inputs}


def axes_by_name(axes: Axes) -> dict[str, tuple[str, ...]]:
    """Axis name -> the dimensions that have it, as `input_ids[1]`, in the order of the inputs."""
    found: dict[str, list[str]] = {}
    for name, spec in axes.items():
        children = [(name, spec)] if isinstance(spec, Mapping) else _numbered(name, spec)
        for path, dimensions in children:
            for dimension, axis in dimensions.items():
                found.setdefault(axis, []).append(f"{path}[{dimension}]")
    return {axis: tuple(paths) for axis, paths in found.items()}


def dynamic_title(axes: Mapping[str, Any]) -> str:
    """`batch, sequence dynamic`, or `static`. An axis derived from another (`cache length + 1`, `2*b`) goes
    unnamed."""
    names = [name for name in axes if not _DERIVED.search(name)]
    return f"{', '.join(names)} dynamic" if names else "static"


def _shape(spec: Any) -> Any:
    from torch.export import Dim

    match spec:
        case Mapping():
            return dict.fromkeys(spec, Dim.DYNAMIC)
        case list():
            return [_shape(child) for child in spec]
        case _:
            return None


def _numbered(name: str, specs: list[dict[int, str]]) -> list[tuple[str, dict[int, str]]]:
    return [(f"{name}[{index}]", spec) for index, spec in enumerate(specs)]

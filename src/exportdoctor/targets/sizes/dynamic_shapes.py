"""Dynamic shapes: converts named axes to the form of `torch.export`, and users' dynamic_shapes to named axes.

A preset names each dynamic axis of each input once; dynamic shapes, title and the report's list of axes follow from it.
Shapes given by users are matched with the inputs as in `torch.export`: by parameter name or in parameter order, with
`**kwargs` bundled under its own name and a registered pytree node as the list of its children. Those that name the same
tensors in another structure count as if they had that; what does not fit is skipped. torch reports both.
`torch.export.ShapesCollection` does not replace this: it is keyed by tensor and has no names for axes.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from exportdoctor.core.axis_names import leading_names
from exportdoctor.core.errors import TargetError
from exportdoctor.targets.input_objects import build_object, can_be_rebuilt, fields_of
from exportdoctor.targets.sizes.fitted_shapes import fit_shapes, static_shape
from exportdoctor.torch_internals.pytree_registry import flatten_once, is_registered

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.targets.built import Inputs

Axes = Mapping[str, Any]
"""Input name -> {dimension: axis name}, or a list of those for an input with several tensors in it."""


Visit = Callable[[str, Any, Any], Any]
"""(path, leaf, its shapes) -> the leaf that takes its place."""


def dynamic_shapes(axes: Axes, *, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The `dynamic_shapes` of these keyword arguments: `Dim.DYNAMIC` at each named axis, else `None` at each leaf.

    torch refuses `None` for a container: an argument such as a list of numbers has a list. `Dim.DYNAMIC` and not a
    named `Dim`: torch may then infer relations such as a multiple of four, and still refuses to freeze the dimension.
    """
    return {name: _shape(axes[name]) if axes.get(name) else static_shape(value) for name, value in inputs.items()}


def axes_by_name(axes: Axes) -> dict[str, tuple[str, ...]]:
    """Axis name -> the dimensions that have it, as `input_ids[1]`, in the order of the inputs."""
    found: dict[str, list[str]] = {}
    for name, spec in axes.items():
        children = [(name, spec)] if isinstance(spec, Mapping) else _number_children(name, spec)
        for path, dimensions in children:
            for dimension, axis in dimensions.items():
                found.setdefault(axis, []).append(f"{path}[{dimension}]")
    return {axis: tuple(paths) for axis, paths in found.items()}


def dynamic_title(axes: Mapping[str, Any]) -> str:
    """`batch, sequence dynamic`, or `static`. An axis derived from another (`cache length + 1`, `2*b`) goes
    unnamed beside that."""
    names = leading_names(axes)
    return f"{', '.join(names)} dynamic" if names else "static"


def map_inputs(visit: Visit, module: nn.Module, inputs: Inputs, shapes: Any) -> Inputs:
    """The inputs with each leaf replaced by `visit(path, leaf, shapes of the leaf)`; paths as `x`, `pair[0]`."""
    args, kwargs = inputs
    fitted = fit_shapes(module, inputs, shapes)
    shapes = shapes if fitted is None else fitted
    names, arg_shapes = _positional(module, inputs, shapes)
    named = _by_name(module, inputs, shapes)
    return (
        tuple(_walk(visit, *item) for item in zip(names, args, arg_shapes, strict=True)),
        {name: _walk(visit, name, value, named.get(name)) for name, value in kwargs.items()},
    )


def axes_of(module: nn.Module, inputs: Inputs, shapes: Any) -> dict[str, tuple[str, ...]]:
    """Axis name -> the dimensions that have it. An axis without a name is called by its dimension."""
    found: dict[str, list[str]] = {}

    def collect(path: str, leaf: Any, spec: Any) -> Any:
        _refuse_missing_dims(path, leaf, spec)
        for dimension, dim in dynamic_dims(leaf, spec).items():
            place = path if dimension is None else f"{path}[{dimension}]"
            found.setdefault(getattr(dim, "__name__", place), []).append(place)
        return leaf

    if shapes:
        map_inputs(collect, module, inputs, shapes)
    return {axis: tuple(places) for axis, places in found.items()}


def _refuse_missing_dims(path: str, leaf: Any, spec: Any) -> None:
    """Raise TargetError for a dimension that the tensor has not."""
    import torch

    if isinstance(leaf, torch.Tensor) and isinstance(spec, Mapping):
        rank = leaf.dim()
        missing = [place for place in spec if isinstance(place, int) and not -rank <= place < rank]
        if missing:
            raise TargetError(
                f"dynamic_shapes name dimension {missing[0]} of {path}, which has {rank}", hint="Count them from 0"
            )


def dynamic_dims(leaf: Any, spec: Any) -> dict[int | None, Any]:
    """Dimension -> its `Dim` or hint, for those that are dynamic; the key is `None` for a Python int."""
    import torch

    if isinstance(leaf, int) and not isinstance(leaf, bool):
        return {None: spec} if is_dynamic(spec) else {}
    if not isinstance(leaf, torch.Tensor):
        return {}
    match spec:
        case Mapping():
            items = list(spec.items())
        case list() | tuple():
            items = list(enumerate(spec))
        case _:
            items = []
    rank = leaf.dim()  # torch counts negative ones from the end
    return {place % rank: dim for place, dim in items if is_dynamic(dim) and -rank <= place < rank}


def is_dynamic(dim: Any) -> bool:
    """A named or derived `Dim`, `Dim.DYNAMIC` or `Dim.AUTO`; not an int, `None` or `Dim.STATIC`."""
    hint = getattr(dim, "type", None)
    return hasattr(dim, "__name__") or getattr(hint, "name", None) in ("DYNAMIC", "AUTO")


def _shape(spec: Any) -> Any:
    from torch.export import Dim

    match spec:
        case Mapping():
            return dict.fromkeys(spec, Dim.DYNAMIC)
        case list():
            return [_shape(child) for child in spec]
        case _:
            return None


def _number_children(name: str, specs: list[dict[int, str]]) -> list[tuple[str, dict[int, str]]]:
    return [(f"{name}[{index}]", spec) for index, spec in enumerate(specs)]


def _walk(visit: Visit, path: str, value: Any, spec: Any) -> Any:
    match value:
        case dict():
            shapes = spec if isinstance(spec, Mapping) else {}
            made = copy.copy(value)  # another class of dict may not be made of one
            made.update({key: _walk(visit, f"{path}[{key!r}]", item, shapes.get(key)) for key, item in value.items()})
            return made
        case list() | tuple():
            children = _children(visit, path, value, spec)
            return type(value)(*children) if hasattr(value, "_fields") else type(value)(children)
    if is_registered(type(value)):
        items, rebuild = flatten_once(value)
        return rebuild(_children(visit, path, items, spec, names=_names_of_fields(value, items)))
    if isinstance(spec, list | tuple) and can_be_rebuilt(value):
        fields = fields_of(value)
        specs = spec if len(spec) == len(fields) else [None] * len(fields)
        pairs = zip(fields.items(), specs, strict=True)
        walked = {name: _walk(visit, f"{path}.{name}", one, shape) for (name, one), shape in pairs}
        return build_object(type(value), walked)
    return visit(path, value, spec)


def _names_of_fields(value: Any, items: list[Any]) -> list[str]:
    """`.name` for each child of a registered dataclass that is the list of its fields; none of other classes."""
    fields = fields_of(value) if dataclasses.is_dataclass(value) else {}
    same = len(fields) == len(items) and all(map(operator.is_, fields.values(), items))
    return [f".{name}" for name in fields] if same else []


def _children(visit: Visit, path: str, values: Any, spec: Any, *, names: Sequence[str] = ()) -> list[Any]:
    values = list(values)
    names = names or [f"[{index}]" for index in range(len(values))]
    match spec:
        case list() | tuple() | deque() if len(spec) == len(values):
            shapes = list(spec)
        case _:
            shapes = [None] * len(values)
    return [_walk(visit, path + name, *pair) for name, *pair in zip(names, values, shapes, strict=True)]


def _shapes_by_parameter(module: nn.Module, inputs: Inputs, shapes: Any) -> Mapping[str, Any]:
    """The shapes by parameter name, whichever way they were given."""
    if isinstance(shapes, Mapping):
        return shapes
    args, kwargs = inputs
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    return dict(zip(bound, shapes or (), strict=False))


def _positional(module: nn.Module, inputs: Inputs, shapes: Any) -> tuple[list[str], list[Any]]:
    """A name and the shapes for each positional argument."""
    given = _shapes_by_parameter(module, inputs, shapes)
    names: list[str] = []
    specs: list[Any] = []
    rest = len(inputs[0])
    for parameter in inspect.signature(module.forward).parameters.values():
        if rest == 0 or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            break
        taken = rest if parameter.kind is parameter.VAR_POSITIONAL else 1
        several = parameter.kind is parameter.VAR_POSITIONAL
        spec = given.get(parameter.name)
        bundle = list(spec) if several and isinstance(spec, list | tuple) and len(spec) == taken else [None] * taken
        names += [f"{parameter.name}[{index}]" for index in range(taken)] if several else [parameter.name]
        specs += bundle if several else [spec]
        rest -= taken
    return names, specs


def _by_name(module: nn.Module, inputs: Inputs, shapes: Any) -> Mapping[str, Any]:
    """The shapes of each keyword argument, those in the bundle of `**kwargs` included."""
    given = _shapes_by_parameter(module, inputs, shapes)
    for parameter in inspect.signature(module.forward).parameters.values():
        bundle = given.get(parameter.name)
        if parameter.kind is parameter.VAR_KEYWORD and isinstance(bundle, Mapping):
            return {**given, **bundle}
    return given

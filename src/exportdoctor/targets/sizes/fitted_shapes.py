"""`dynamic_shapes` in the structure of the inputs, where they name the same tensors in another one.

torch wants the very structure: a list for a list and a tuple for a tuple, the list of its fields for a dataclass, an
entry for each argument, a tuple of its own for `*args`, None for each leaf that stays as it is and for nothing else.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from exportdoctor.targets.input_objects import can_be_rebuilt, fields_of
from exportdoctor.torch_internals.pytree_registry import flatten_once, node_kind, shapes_of_children

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.targets.built import Inputs


class _NoFit(Exception):
    """An entry describes nothing that the inputs have, or not one thing."""


def fit_shapes(module: nn.Module, inputs: Inputs, shapes: Any) -> dict[str, Any] | None:
    """The shapes by parameter name in the structure of the inputs. What they leave out stays as it is in the example.

    None where they name what the inputs have not, or could mean one input as well as another, unless torch takes them
    as they are.
    """
    args, kwargs = inputs
    try:
        signature = inspect.signature(module.forward)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    found: dict[str, Any] | None = None
    for named in _readings(signature, bound, len(args), shapes):
        try:
            fitted = _fit_entries(bound, named)
        except _NoFit:
            continue
        if _alike(dict(named), fitted):
            return fitted
        if found is not None and not _alike(found, fitted):
            return None
        found = fitted
    return found


def has_structure_of_inputs(module: nn.Module, inputs: Inputs, shapes: Any) -> bool:
    """Whether the shapes are as torch wants them."""
    fitted = fit_shapes(module, inputs, shapes)
    if fitted is None:
        return False
    return _alike(shapes, fitted) if isinstance(shapes, Mapping) else _alike(list(shapes), list(fitted.values()))


def _readings(
    signature: inspect.Signature, bound: Mapping[str, Any], positional: int, shapes: Any
) -> Iterator[Mapping[str, Any]]:
    """What the shapes may mean by parameter name, the likeliest first."""
    kinds = {name: signature.parameters[name].kind for name in bound}
    rest = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL), None)
    bundle = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), None)
    if isinstance(shapes, Mapping):
        shapes = _without_absent(shapes, signature, bound)
        yield shapes
        if bundle is not None:
            inner = {name: spec for name, spec in shapes.items() if name in bound[bundle] and name not in bound}
            outer = {name: spec for name, spec in shapes.items() if name not in inner}
            if bundle not in outer:
                yield {**outer, bundle: inner}
        if len(bound) == 1:
            yield dict.fromkeys(bound, shapes)
    elif isinstance(shapes, list | tuple):
        if len(shapes) <= len(bound):
            yield dict(zip(bound, shapes, strict=False))
        if rest is None and len(bound) < len(signature.parameters) >= len(shapes):
            yield _without_absent(dict(zip(signature.parameters, shapes, strict=False)), signature, bound)
        if rest is not None:
            first = list(bound).index(rest)
            if len(shapes) == positional:
                yield {**dict(zip(bound, shapes[:first], strict=False)), rest: tuple(shapes[first:])}
        elif len(bound) == 1:
            yield dict.fromkeys(bound, shapes)


def _without_absent(
    shapes: Mapping[str, Any], signature: inspect.Signature, bound: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The entries, without those that say nothing of an argument that is left at its default."""
    absent = signature.parameters.keys() - bound.keys()
    return {name: spec for name, spec in shapes.items() if name not in absent or not _says_nothing(spec)}


def _says_nothing(spec: Any) -> bool:
    if isinstance(spec, Mapping):
        return all(map(_says_nothing, spec.values()))
    return spec is None or (isinstance(spec, list | tuple) and all(map(_says_nothing, spec)))


def _fit_entries(values: Mapping[Any, Any], specs: Any) -> dict[Any, Any]:
    """An entry for each value by name."""
    if not isinstance(specs, Mapping) or any(name not in values for name in specs):
        raise _NoFit
    return {name: _fit(value, specs.get(name)) for name, value in values.items()}


def _fit(value: Any, spec: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return _fit_tensor(value, spec)
    if isinstance(value, torch.Size):
        raise _NoFit  # torch takes no shapes for it: it expects a tuple at one place and a list at another
    if spec is None:
        return static_shape(value)
    if isinstance(value, Mapping) and node_kind(value) == "builtin":
        fitted = _fit_entries(value, spec)
        return shapes_of_children(value, list(fitted.values()))
    if node_kind(value) != "leaf":
        children, _ = flatten_once(value)
        return shapes_of_children(value, _fit_children(children, _names_of(value, children), _by_field(value, spec)))
    if isinstance(value, int) and not isinstance(value, bool | Mapping | list | tuple):
        return None if isinstance(spec, Mapping | list | tuple) else spec
    if can_be_rebuilt(value):  # torch takes it apart once its class is registered
        fields = fields_of(value)
        return _fit_children(list(fields.values()), list(fields), _by_field(value, spec))
    if value is None or isinstance(value, bool | float | complex | str | torch.dtype | torch.device):
        return None  # torch takes nothing else for what is no tensor
    raise _NoFit  # an object whose class is not registered may hold what is described


def _fit_tensor(value: Any, spec: Any) -> Any:
    rank = value.dim()
    match spec:
        case None:
            return None
        case dict() if all(type(place) is int and -rank <= place < rank for place in spec):
            dims: Collection[Any] = spec.values()
        case list() | tuple() if len(spec) == rank:
            dims = spec
        case _:
            raise _NoFit
    if any(isinstance(dim, Mapping | list | tuple | str) for dim in dims):
        raise _NoFit
    return spec


def _fit_children(children: Sequence[Any], names: Sequence[str], spec: Any) -> list[Any]:
    """The entries of the children, which a list names by place, and a dict or an object like theirs by field."""
    if isinstance(spec, list | tuple):
        if len(spec) != len(children):
            raise _NoFit
        return [_fit(child, one) for child, one in zip(children, spec, strict=True)]
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        spec = fields_of(spec)
    if not isinstance(spec, Mapping) or len(names) != len(children):
        raise _NoFit
    return list(_fit_entries(dict(zip(names, children, strict=True)), spec).values())


def _by_field(value: Any, spec: Any) -> Any:
    """Of entries for each field of a dataclass those for the fields that are not None, by name: torch leaves the
    others out."""
    if not dataclasses.is_dataclass(value):
        return spec
    names = [one.name for one in dataclasses.fields(value)]
    absent = {name for name in names if getattr(value, name, None) is None}
    if not absent or not isinstance(spec, Mapping | list | tuple):
        return spec
    if not isinstance(spec, Mapping):
        if len(spec) != len(names):
            return spec
        spec = dict(zip(names, spec, strict=True))
    return {name: one for name, one in spec.items() if name not in absent or not _says_nothing(one)}


def _names_of(value: Any, children: Sequence[Any]) -> list[str]:
    """The names of the fields that the children are; empty where they have none."""
    if hasattr(value, "_fields"):
        return list(value._fields)
    fields = fields_of(value) if not isinstance(value, list | tuple | Mapping) else {}
    same = len(fields) == len(children) and all(one is child for one, child in zip(fields.values(), children))
    return list(fields) if same else []


def static_shape(value: Any) -> Any:
    """`None` at each leaf, in containers like those of the value."""
    if node_kind(value) == "leaf":
        return None
    return shapes_of_children(value, [static_shape(child) for child in flatten_once(value)[0]])


def _alike(one: Any, other: Any) -> bool:
    """Whether both are of the same containers and the same entries."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one is other or one == other)


def shapes_code(shapes: Any) -> str:
    """The expression that makes such shapes, with `Dim` of torch.export. Raises ValueError for a container or a
    dimension of another class than torch and Python have."""
    if shapes is None or type(shapes) is int:
        return repr(shapes)
    if type(shapes) is dict:
        return "{" + ", ".join(f"{key!r}: {shapes_code(one)}" for key, one in shapes.items()) + "}"
    if type(shapes) is list:
        return f"[{', '.join(map(shapes_code, shapes))}]"
    if isinstance(shapes, tuple) and (type(shapes) is tuple or hasattr(shapes, "_fields")):
        inner = ", ".join(map(shapes_code, shapes))
        if hasattr(shapes, "_fields"):
            return f"{type(shapes).__name__}({inner})"
        return f"({inner},)" if len(shapes) == 1 else f"({inner})"
    return dim_code(shapes)


def dim_code(dim: Any) -> str:
    """The expression for a named or derived dimension or a hint. Raises ValueError for anything else."""
    if type(dim).__module__ != "torch.export.dynamic_shapes":
        raise ValueError(f"{type(dim).__name__} is no dimension")
    hint = getattr(getattr(dim, "type", None), "name", None)
    if hint is not None:
        limits = [f"{name}={limit}" for name in ("min", "max") if (limit := getattr(dim, name, None)) is not None]
        return f"Dim.{hint}({', '.join(limits)})" if limits else f"Dim.{hint}"
    root = getattr(dim, "root", dim)
    limits = [f", {name}={limit}" for name in ("min", "max") if (limit := _limit_of(root, name)) is not None]
    made = f'Dim("{root.__name__}"{"".join(limits)})'
    return made if root is dim else re.sub(rf"\b{re.escape(root.__name__)}\b", lambda _: made, dim.__name__)


def _limit_of(dim: Any, name: str) -> int | None:
    """The limit that was given, None for the one that a dimension has by itself."""
    from torch.export import Dim

    limit: int = getattr(dim, name)
    return None if limit == getattr(Dim("_"), name) else limit

"""Objects among inputs and outputs that torch cannot take apart: what is in them, and others like them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, SimpleNamespace
from typing import Any

from exportdoctor.core.patch_attribute import set_on_object
from exportdoctor.targets.held_state import attributes_of, slots_of
from exportdoctor.torch_internals.pytree_registry import flatten_once, node_kind
from exportdoctor.torch_internals.trees import tree_leaves


def attribute_names(value: Any) -> tuple[str, ...]:
    """The names of an object's attributes that are set: a dataclass's fields, then those of its slots and its dict."""
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    names = [one.name for one in fields if hasattr(value, one.name)]
    return tuple(dict.fromkeys([*names, *dict(slots_of(value)), *attributes_of(value)]))


def fields_of(value: Any) -> dict[str, Any]:
    """What an object is taken apart into: its attributes by name, without fields of a dataclass that are None."""
    found = {name: getattr(value, name) for name in attribute_names(value)}
    declared = {one.name for one in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else ()
    return {name: one for name, one in found.items() if one is not None or name not in declared}


def build_object(kind: type[Any], fields: Mapping[str, Any]) -> Any:
    """An object of the class with these attributes, without `__init__`; fields of a dataclass that are left out are
    None."""
    try:
        made = object.__new__(kind)
    except TypeError:  # a class of Python's own lays out its memory, and may keep more there than attributes
        if not issubclass(kind, SimpleNamespace):
            raise
        made = SimpleNamespace.__new__(kind)
    missing = {field.name: None for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    for name, one in {**missing, **fields}.items():
        set_on_object(made, name, one)
    return made


def can_be_rebuilt(value: Any) -> bool:
    """Whether it is an object with tensors like which others can be made without its class's own code."""
    if not holds_tensors(value):
        return False
    try:
        build_object(type(value), fields_of(value))
    except Exception:
        return False
    return True


def is_plain_kind(value: Any) -> bool:
    """Whether it is a tensor, a module, a class or a function, which is never taken apart."""
    import torch

    return isinstance(value, torch.Tensor | torch.nn.Module | type | FunctionType)


def holds_tensors(value: Any) -> bool:
    """Whether it is an object of the user's that holds tensors, or a dataclass."""
    import torch

    if is_plain_kind(value):
        return False
    values = tree_leaves([getattr(value, name) for name in attribute_names(value)])
    return dataclasses.is_dataclass(value) or any(isinstance(one, torch.Tensor) for one in values)


@dataclass(frozen=True)
class InputLayout:
    """The containers and objects around the leaves of inputs; equal forms take equally many leaves in like places."""

    form: Any
    _build: Callable[[Iterator[Any]], Any] = field(compare=False, repr=False)

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """Such inputs with these leaves."""
        return self._build(iter(leaves))


def flatten_inputs(value: Any) -> tuple[list[Any], InputLayout]:
    """The leaves in pytree's order, those of objects with tensors too, and what puts others together in the same way,
    whether the classes are registered by then or not."""
    leaves: list[Any] = []
    return leaves, _layout_of(value, leaves)


def separate_tensors(value: Any) -> Any:
    """The same with a copy in place of each tensor that stands there before; None where each stands once.

    torch.export takes one tensor that is given twice for one input, and its program reads the last of them alone.
    """
    import torch

    leaves, layout = flatten_inputs(value)
    met, made = set[int](), []
    for leaf in leaves:
        again = isinstance(leaf, torch.Tensor) and id(leaf) in met
        met.add(id(leaf))
        made.append(leaf.detach().clone().requires_grad_(leaf.requires_grad) if again else leaf)
    return None if all(map(operator.is_, leaves, made)) else layout.unflatten(made)


def _layout_of(value: Any, leaves: list[Any]) -> InputLayout:
    keys: tuple[Any, ...] = ()
    if node_kind(value) != "leaf":
        keys = tuple(value) if isinstance(value, Mapping) else ()
        children, rebuild = flatten_once(value)
    elif can_be_rebuilt(value):
        fields = fields_of(value)
        children = list(fields.values())

        def rebuild(others: list[Any]) -> Any:
            return build_object(type(value), dict(zip(fields, others, strict=True)))

    else:
        leaves.append(value)
        return InputLayout(None, next)
    layouts = [_layout_of(child, leaves) for child in children]
    form = (type(value), keys, tuple(layout.form for layout in layouts))
    return InputLayout(form, lambda given: rebuild([layout._build(given) for layout in layouts]))

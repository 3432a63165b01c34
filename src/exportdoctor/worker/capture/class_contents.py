"""What is known of a class's instances: whether all that they hold stands in their `__dict__`.

Slots, C structures and descriptors with a state of their own can hold what no attribute shows. So can a second class of
the same name.
"""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict
from types import BuiltinFunctionType, FunctionType
from typing import Any

from exportdoctor.targets.held_state import attributes_of

PLAIN = frozenset({bool, int, float, complex, str, bytes})
"""Types whose `repr` is their value."""


# an empty class of each kind, whose instances show how much memory one needs that holds nothing but a `__dict__`
class _EmptyObject: ...


class _EmptyDict(dict[Any, Any]): ...


class _EmptyOrderedDict(OrderedDict[Any, Any]): ...


class _EmptyList(list[Any]): ...


class _EmptyTuple(tuple[Any, ...]): ...


class _EmptyStr(str): ...


class _EmptyInt(int): ...


class _EmptyFloat(float): ...


_EMPTY = {
    OrderedDict: _EmptyOrderedDict, dict: _EmptyDict, list: _EmptyList, tuple: _EmptyTuple,
    str: _EmptyStr, int: _EmptyInt, float: _EmptyFloat, object: _EmptyObject,
}  # fmt: skip


def holds_only_attributes(kind: type, empty: type) -> bool:
    """Whether an instance of `kind` has no memory beyond that of the class `empty`: no slots, no C structure."""
    return kind.__basicsize__ == empty.__basicsize__ and kind.__itemsize__ == empty.__itemsize__


@functools.cache
def plain_base(kind: type) -> type | None:
    """The builtin type of whose instances `kind` only adds attributes; None where it may hold more."""
    base = next((known for known in _EMPTY if issubclass(kind, known)), object)
    if base is object and kind.__dictoffset__ == 0:
        return None  # slots, or a C structure that is no larger than a `__dict__`
    bare = kind.__basicsize__ == base.__basicsize__ and kind.__dictoffset__ == 0
    return base if bare or holds_only_attributes(kind, _EMPTY[base]) else None


@functools.cache
def has_stateful_descriptor(kind: type) -> bool:
    """Whether a class outside torch.nn among its bases has a descriptor that may hold values of instances itself."""
    return any(
        _may_hold_values(attribute)
        for parent in kind.__mro__
        if parent is not object and not parent.__module__.startswith("torch.nn.")
        for attribute in parent.__dict__.values()
    )


def _may_hold_values(attribute: Any) -> bool:
    kind = type(attribute)
    if not any(hasattr(kind, name) for name in ("__get__", "__set__", "__delete__")) or kind in _STATELESS:
        return False
    if not isinstance(attribute, property) and not holds_only_attributes(kind, _EmptyObject):
        return True
    held = attributes_of(attribute).values()
    return any(value is not None and type(value) not in _HARMLESS and not isinstance(value, type) for value in held)


_STATELESS = frozenset({
    FunctionType, classmethod, staticmethod, property, functools.cached_property, BuiltinFunctionType,
    type(object.__dict__["__class__"]), type(object.__init__), type(dict.get), type(dict.__dict__["fromkeys"]),
})  # fmt: skip
_HARMLESS = PLAIN | {FunctionType, BuiltinFunctionType, classmethod, staticmethod}


def is_found_by_name(kind: type) -> bool:
    """Whether the class's name, looked up in its module, gives that very class: then no other has the name."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = (vars(found) if isinstance(found, type) else attributes_of(found)).get(name)
    return found is kind

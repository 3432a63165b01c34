"""Replaces attributes or an item for the length of a `with` block and restores it afterwards, also after an error.

Used instead of `unittest.mock.patch.object`, which writes with `setattr`: there `nn.Module` has rules of its own, for
example that a tensor becomes a buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

_ABSENT = object()


def set_on_object(holder: Any, name: str, value: Any) -> None:
    """Sets an object's attribute, also of one that is frozen; by its slot where its class has a layout of its own."""
    try:
        object.__setattr__(holder, name, value)
    except TypeError:
        slots = (vars(kind)[name] for kind in type(holder).__mro__ if name in vars(kind))
        next(slots).__set__(holder, value)


@contextmanager
def patch_attribute(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Within it, `holder.name` is `value`; `holder` is a module, a class or an object with a `__dict__`.

    An attribute that the holder inherited is inherited again afterwards: a copy that stays behind on an instance would
    hide later changes of its class.
    """
    before = vars(holder).get(name, _ABSENT)
    _set_attribute(holder, name, value)
    try:
        yield
    finally:
        if before is not _ABSENT:
            _set_attribute(holder, name, before)
        elif name in vars(holder):
            _delete_attribute(holder, name)


@contextmanager
def patch_attributes(changes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """As `patch_attribute`, for each (holder, name, value) in turn."""
    with ExitStack() as stack:
        for holder, name, value in changes:
            stack.enter_context(patch_attribute(holder, name, value))
        yield


@contextmanager
def patch_item(mapping: MutableMapping[Any, Any], key: Any, value: Any) -> Iterator[None]:
    """Within it, `mapping[key]` is `value`."""
    before = mapping.get(key, _ABSENT)
    mapping[key] = value
    try:
        yield
    finally:
        if before is _ABSENT:
            mapping.pop(key, None)
        else:
            mapping[key] = before


def _set_attribute(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, type | ModuleType):
        setattr(holder, name, value)
    else:
        vars(holder)[name] = value  # not `__setattr__`: an `nn.Module` would register a tensor as a buffer


def _delete_attribute(holder: Any, name: str) -> None:
    if isinstance(holder, type | ModuleType):
        delattr(holder, name)
    else:
        del vars(holder)[name]

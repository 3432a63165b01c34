"""Which submodules are mentioned outside their model: by a registry in the files of their classes, or weakly.

State kept there is no attribute, and a module that asks for it in an export only shows nothing of it in the forward.
"""

from __future__ import annotations

import sys
import sysconfig
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

from exportdoctor.targets.held_state import attributes_of, contents_of
from exportdoctor.torch_internals.dynamo_frames import references_by_dynamo

_DEPTH = 5
_CONTAINERS = (list, tuple, set, frozenset, deque)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def find_mentioned(modules: Iterable[torch.nn.Module]) -> frozenset[int]:
    """The identities of those among `modules` that a weak reference, or a container in the globals of their classes,
    mentions: as an item, as a key, or by `id`."""
    known = {id(module): module for module in modules}
    found = {key for key, module in known.items() if weakref.getweakrefcount(module) > references_by_dynamo(module)}
    seen: set[int] = set()
    todo = [(namespace, 0) for namespace in _namespaces(known.values())]
    while todo:
        value, depth = todo.pop()
        if id(value) in seen or depth > _DEPTH:
            continue
        seen.add(id(value))
        for item in _parts(value):
            kind = type(item)
            if kind is int:
                if item in known:
                    found.add(item)
            elif isinstance(item, torch.nn.Module):
                if id(item) in known and depth:
                    found.add(id(item))
            elif kind not in _ATOMS:
                todo.append((item, depth + 1))
    return frozenset(found)


_ATOMS = (str, float, bool, bytes, complex, type(None), torch.Tensor, torch.dtype)


def _namespaces(modules: Iterable[torch.nn.Module]) -> Iterator[dict[str, Any]]:
    """The globals of the files, torch's aside, that define the modules' classes."""
    names = {kind.__module__ for module in modules for kind in type(module).__mro__}
    for name in names:
        if name in sys.modules and not f"{name}.".startswith(("torch.", "builtins.", "abc.", "typing.")):
            yield vars(sys.modules[name])


def _parts(value: Any) -> Iterable[Any]:
    """What the value holds, if it is a container, a function, a class, a file of the user's or a plain object."""
    kind = type(value)
    if isinstance(value, dict):
        return (*dict.keys(value), *dict.values(value))
    if isinstance(value, _CONTAINERS):
        return contents_of(value)
    if kind is FunctionType:
        return (*(value.__closure__ or ()), *value.__dict__.values(), *(value.__defaults__ or ()))
    if kind is CellType:
        return [value.cell_contents] if value != CellType() else ()
    if kind is ModuleType:
        file = getattr(value, "__file__", None) or ""
        return () if not file or file.startswith(_LIBRARIES) else (vars(value),)
    if isinstance(value, type):
        return tuple(vars(value).values()) if value.__module__ not in _OF_LIBRARIES else ()
    return tuple(attributes_of(value).values())


_OF_LIBRARIES = frozenset(sys.stdlib_module_names)

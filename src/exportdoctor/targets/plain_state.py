"""The state that a call of a module may change and torch.export does not see: plain values, wherever they stand."""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from exportdoctor.core.failure.frames import is_local_file, is_user_file
from exportdoctor.targets.held_state import (
    attributes_of,
    builtin_class_of,
    contents_of,
    is_of_python,
    is_of_user,
    slots_of,
    state_of_generator,
)
from exportdoctor.targets.iterator_places import PLAIN_KINDS, place_of

if TYPE_CHECKING:
    from torch import nn

_CONTAINERS = (list, dict, set, deque, tuple)
_WITH_FUNCTIONS = (staticmethod, classmethod, property, partial, MethodType)
_MOST_ITEMS, _MOST_OBJECTS, _DEEPEST, _LONG = 256, 10_000, 4, 1000
_TENSORS_OF_MODULES = frozenset({"_parameters", "_buffers", "_modules"})


def plain_state(module: nn.Module) -> dict[str, Any]:
    """Numbers, flags, texts, containers with the plain values in them, and how often tensors were written into, by
    path: of the modules, of the files, classes and functions of their code, and of what those hold."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    own = {id(child) for child in module.modules()}
    for path, child in module.named_modules():
        for name, value in vars(child).items():
            place = f"{path}.{name}".lstrip(".")
            _note(found, place, value, deep=name not in _TENSORS_OF_MODULES)
            if not is_of_python(type(value)):
                _note_function(found, place, value, seen)
                _note_objects(found, place, value, seen)
    for kind in dict.fromkeys(kind for child in module.modules() for kind in type(child).__mro__):
        space = sys.modules.get(kind.__module__)
        if is_user_file(getattr(space, "__file__", None) or "<none>"):
            _note_all(found, kind.__qualname__, vars(kind), seen)
            _note_file(found, space, own, seen)
    return found


class Writes(int):
    """How often a tensor was written into, which torch.export sees."""


def without_writes(words: Any) -> Any:
    """What `plain_state` has of a value, without how often tensors in it were written into."""
    if not isinstance(words, tuple):
        return words
    return tuple(without_writes(word) for word in words if type(word) is not Writes)


def _note_file(found: dict[str, Any], file: Any, own: set[int], seen: set[int]) -> None:
    """What stands in a file, in its functions, classes and objects, and in the user's files that it imports. The
    modules of `own`, by identity, are noted by their own paths."""
    if id(file) in seen:
        return
    seen.add(id(file))
    stem = file.__name__.rpartition(".")[2]
    _note_all(found, stem, vars(file), seen)
    for name, value in list(vars(file).items()):
        if isinstance(value, ModuleType):
            if _is_local(value):
                _note_file(found, value, own, seen)
        elif isinstance(value, type):
            if value.__module__ == file.__name__:
                _note_all(found, value.__qualname__, vars(value), seen)
        elif id(value) not in own and _is_local(sys.modules.get(type(value).__module__)):
            _note_all(found, f"{stem}.{name}", attributes_of(value), seen)


def _note_objects(found: dict[str, Any], path: str, value: Any, seen: set[int]) -> None:
    """What an object of the user's holds, and the objects in it; a module is noted by its own path."""
    from torch import nn

    pending = [(path, value)]
    while pending and len(seen) < _MOST_OBJECTS:
        path, value = pending.pop()
        if id(value) in seen or not is_of_user(type(value)) or issubclass(type(value), nn.Module):
            continue
        seen.add(id(value))
        for name, held in (*attributes_of(value).items(), *slots_of(value)):
            _note(found, f"{path}.{name}", held)
            _note_function(found, f"{path}.{name}", held, seen)
            pending.append((f"{path}.{name}", held))


def _note_function(found: dict[str, Any], path: str, value: Any, seen: set[int]) -> None:
    """What a function holds between its calls: attributes, defaults, and the variables of the functions around it; of
    a partial its arguments, too.
    """
    if isinstance(value, partial):
        given = {f"argument {place}": one for place, one in enumerate(value.args)}
        _note_all(found, path, {**given, **value.keywords}, seen)
    for function in _functions_of(value):
        if id(function) in seen:
            continue
        seen.add(id(function))
        code = function.__code__
        arguments = code.co_varnames[: code.co_argcount]
        held = dict(zip(reversed(arguments), reversed(function.__defaults__ or ()), strict=False))
        held |= {**(function.__kwdefaults__ or {}), **vars(function)}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # not filled yet
                held[name] = cell.cell_contents
        _note_all(found, path, held, seen)


def _functions_of(value: Any) -> Iterator[FunctionType]:
    """A function, and those of a method, a property or a partial."""
    names = ("__func__", "func", "fget", "fset") if isinstance(value, _WITH_FUNCTIONS) else ()
    for one in (value, *(getattr(value, name, None) for name in names)):
        if type(one) is FunctionType:
            yield one


def _is_local(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and is_local_file(file) and is_user_file(file)  # a checkout of torch is none of the model's


def _note_all(found: dict[str, Any], path: str, values: Any, seen: set[int]) -> None:
    for name, value in list(values.items()):
        if not name.startswith("__"):
            _note(found, f"{path}.{name}", value)
        _note_function(found, f"{path}.{name}", value, seen)


def _note(found: dict[str, Any], path: str, value: Any, *, deep: bool = True) -> None:
    words = tuple(_words(value, deep=deep))
    if words:
        found[path] = words


def _words(value: Any, *, deep: bool) -> Iterator[Any]:
    is_known = is_of_python(type(value))
    if issubclass(type(value), PLAIN_KINDS):
        yield type(value).__name__, _text(value)
    elif not is_known and (place := place_of(value)):
        yield place
    elif not is_known and (state := state_of_generator(value)) is not None:
        yield hash(pickle.dumps(state))
    elif not is_known and deep and _counts_writes(value):
        yield Writes(value._version)
    elif issubclass(type(value), _CONTAINERS):
        yield len(contents_of(value))
        if deep:
            yield from _items(value, _DEEPEST)


def _items(container: Any, depth: int) -> Iterator[Any]:
    """What it holds, also in containers in it: plain values, how often tensors were written into, and of any other
    value only what kind it is."""
    contents = contents_of(container)
    if len(contents) > 2 * _MOST_ITEMS:
        return
    for item in contents:
        if issubclass(type(item), _CONTAINERS) and depth:
            yield type(item).__name__, len(contents_of(item)), *_items(item, depth - 1)
        elif issubclass(type(item), PLAIN_KINDS):
            yield _text(item)
        else:
            yield type(item).__name__, Writes(item._version if _counts_writes(item) else 0)


def _counts_writes(value: Any) -> bool:
    """Whether it is a tensor that counts how often it was written into."""
    import torch

    return issubclass(type(value), torch.Tensor) and not value.is_inference()


def _text(value: Any) -> str | tuple[int, int]:
    """Of a long text, which a file may hold, its length and hash."""
    kind = builtin_class_of(value)  # a subclass of a model's may do anything else
    if kind in (str, bytes) and (length := kind.__len__(value)) > _LONG:
        return length, kind.__hash__(value)
    return str(kind.__repr__(value))

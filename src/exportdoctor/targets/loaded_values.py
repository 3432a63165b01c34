"""A digest of the values that stand in Python files which were imported: what code reads there beside its arguments.

A file that code read at its import, or what a test changed, shows in such a value.
"""

from __future__ import annotations

import argparse
import enum
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from uuid import uuid4

from exportdoctor.core.exception_text import text_of
from exportdoctor.targets.held_state import attributes_of, builtin_class_of, contents_of, slots_of
from exportdoctor.targets.iterator_places import PLAIN_KINDS

_CONTAINERS = (list, tuple, set, frozenset, dict)
_HOLDERS = (SimpleNamespace, argparse.Namespace)
_MOST_VALUES, _MOST_BYTES = 200_000, 1 << 30
"""Of values, and of tensors and arrays, that are looked at."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def digest_values(files: Iterable[ModuleType]) -> str:
    """Sixteen hexadecimal digits; others each time where there is more than can be looked at, or a value refuses it."""
    walk = _Walk()
    try:
        for file in sorted(files, key=lambda one: one.__name__):
            walk.add(file.__name__)
            walk.add_space(vars(file), file.__name__)
    except Exception:  # classes of the user's may raise anything, and some tensors hold no values
        return uuid4().hex[:16]
    return walk.hash.hexdigest()[:16]


class _TooManyError(Exception):
    """More values than can be looked at."""


class _Walk:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._seen: dict[int, tuple[int, object]] = {}
        self._values = self._bytes = 0

    def add(self, *words: object) -> None:
        """Append words."""
        for word in words:
            self.hash.update(str(word).encode(errors="replace") + b"\x1e")

    def add_space(self, space: dict[str, Any], module: str) -> None:
        """The globals of a file, or what stands in a class, but for its other files, and what those define."""
        for name, value in sorted(
            (one for one in list(space.items()) if isinstance(one[0], str)), key=lambda one: one[0]
        ):
            if isinstance(value, ModuleType) or (name.startswith("__") and name.endswith("__")):
                continue
            if isinstance(value, type | FunctionType) and value.__module__ != module:
                continue
            self.add(name)
            self.add_value(value)

    def add_value(self, value: Any) -> None:
        """A value by its content as far as that is known, else by its class."""
        kind = type(value)
        self._values += 1
        if self._values > _MOST_VALUES:
            raise _TooManyError
        if value is None or kind in PLAIN_KINDS:
            self.add(kind.__name__, repr(value))
            return
        if id(value) in self._seen:
            self.add("again", self._seen[id(value)][0])
            return
        self._seen[id(value)] = len(self._seen), value
        self.add(kind.__module__, kind.__qualname__)
        if isinstance(value, type):
            self.add(value.__qualname__)
            self.add_space(dict(vars(value)), value.__module__)
        elif isinstance(value, ModuleType):
            self.add(value.__name__)
        else:
            self._add_content(value)

    def _add_content(self, value: Any) -> None:
        self._bytes += _size_of(value)
        if self._bytes > _MOST_BYTES:
            raise _TooManyError
        if (array := _bytes_of(value)) is not None:
            self.add(*array)
        held = list(_held_by(value))
        for one in held:
            self.add_value(one)
        if isinstance(value, PLAIN_KINDS):
            self.add(builtin_class_of(value).__repr__(value))
        elif isinstance(value, set | frozenset):
            self.add(*sorted(_ADDRESS.sub("", text_of(one)) for one in contents_of(value)))
        elif not held and not isinstance(value, _CONTAINERS) and _is_of_python(type(value)):
            self.add(_ADDRESS.sub("", text_of(value)))


def _held_by(value: Any) -> Iterator[Any]:
    """The values in a container, a function or an object of a class that is not Python's own."""
    if isinstance(value, dict):
        yield from (*dict.keys(value), *dict.values(value))
    elif isinstance(value, list | tuple):
        yield from contents_of(value)
    if isinstance(value, FunctionType):
        yield from (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *vars(value).values())
        yield from (cell.cell_contents for cell in value.__closure__ or () if cell != CellType())
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.items())
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, enum.Enum):
        yield from (value.name, value.value)
    elif isinstance(value, _HOLDERS) or not _is_of_python(type(value)):
        yield from (name_and_value for one in attributes_of(value).items() for name_and_value in one)
        yield from (held for _, held in slots_of(value))


def _is_of_python(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] in sys.stdlib_module_names


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _size_of(value: Any) -> int:
    """Bytes of a dense tensor or an array."""
    if _is_array(value):
        return int(value.nbytes)
    return value.numel() * value.element_size() if _is_tensor(value) and not value.is_nested else 0


def _bytes_of(value: Any) -> tuple[object, ...] | None:
    """What a tensor or an array holds; None of anything else."""
    if _is_tensor(value):
        import torch

        words = (value.dtype, value.layout, value.device, None if value.is_nested else tuple(value.shape))
        if value.layout != torch.strided or value.is_nested or value.device.type == "meta" or value.is_quantized:
            return words
        with torch.no_grad():
            plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            return *words, hashlib.sha256(plain.view(torch.uint8).numpy().data if plain.numel() else b"").hexdigest()
    if _is_array(value):
        content = value.tobytes() if not value.dtype.hasobject else b""
        return value.dtype, value.shape, hashlib.sha256(content).hexdigest()
    return None

"""How far iterators, generators and files have come, and how some of them are put back."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import GeneratorType
from typing import Any

_DEEPEST = 4
_FILE = next(kind for kind in io.IOBase.__mro__ if type(kind) is type and kind is not object)
"""The class of all files. `io.IOBase` itself is abstract: whether an object is of it is asked by a hash of the object's
class, which a metaclass of the user's may refuse."""
PLAIN_KINDS = (bool, int, float, complex, str, bytes, type(None))
"""Values of these hold no other object."""
_EMPTY: tuple[Any, ...] = ([], (), range(0), "", b"", bytearray())
_WITH_INDEX = tuple(type(iter(one)) for one in _EMPTY)
"""Iterators that take a place again: those of sequences, as long as they are not exhausted."""


def place_of(value: Any) -> tuple[Any, ...]:
    """What tells how far an iterator, generator or file has come; empty for any other value."""
    return tuple(_words(value, _DEEPEST))


def place_access(value: Any) -> tuple[Any, Callable[[Any], object]] | None:
    """Where it is, and what puts it there again; None for what cannot be put back."""
    with suppress(Exception):  # closed, or a text file that is read line by line
        kind = type(value)
        if kind is io.StringIO or kind is io.BytesIO:
            return (value.tell(), value.getvalue()), partial(_write_again, value)
        if issubclass(kind, _FILE) and value.seekable() and not value.writable():
            return value.tell(), value.seek
        if any(kind is one for one in _WITH_INDEX):
            found = value.__reduce__()
            return (found[2], value.__setstate__) if len(found) == 3 else None
    return None


def _write_again(file: Any, state: tuple[int, Any]) -> None:
    place, content = state
    if not file.closed and file.getvalue() != content:
        file.seek(0)
        file.truncate()
        file.write(content)
    file.seek(place)


def _words(value: Any, depth: int) -> Iterator[Any]:
    kind = type(value)
    if issubclass(kind, _FILE):
        with suppress(Exception):
            yield "file", value.tell()
    elif kind is itertools.count:
        yield repr(value)
    elif kind is GeneratorType:
        frame = value.gi_frame
        yield "ended" if frame is None else ("at", frame.f_lasti)
        for name, one in sorted(frame.f_locals.items()) if frame is not None else ():
            yield from _words_held(name, one, depth)
    elif kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__"):
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # later versions of Python copy no iterators
            made, *rest = value.__reduce__()
            yield made.__name__
            for one in rest:
                yield from _words_held("", one, depth)


def _words_held(name: str, value: Any, depth: int) -> Iterator[Any]:
    kind = type(value)
    if issubclass(kind, PLAIN_KINDS):
        yield name, repr(value)
    elif issubclass(kind, tuple) and depth:
        for one in value:
            yield from _words_held(name, one, depth - 1)
    elif issubclass(kind, (list, dict, set)):
        yield name, len(value)
    elif depth:
        yield from ((name, word) for word in _words(value, depth - 1))

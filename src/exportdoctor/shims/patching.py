"""The only place that replaces something for a while. Every replacement is undone, whatever happens in between.

What the holder had of its own comes back, and what it had inherited is inherited again: an attribute that stays behind
on an instance would hide later changes of its class.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

_ABSENT = object()


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Within it, `holder.name` is `value`; `holder` is a module, a class or an object with a `__dict__`."""
    before = vars(holder).get(name, _ABSENT)
    _put(holder, name, value)
    try:
        yield
    finally:
        if before is not _ABSENT:
            _put(holder, name, before)
        elif name in vars(holder):
            _drop(holder, name)


@contextmanager
def replaced_item(mapping: MutableMapping[Any, Any], key: Any, value: Any) -> Iterator[None]:
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


def _put(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, type | ModuleType):
        setattr(holder, name, value)
    else:
        vars(holder)[name] = value  # past `__setattr__`: a module would take a tensor for a buffer


def _drop(holder: Any, name: str) -> None:
    if isinstance(holder, type | ModuleType):
        delattr(holder, name)
    else:
        del vars(holder)[name]


def rebound(function: Callable[..., Any], names: dict[str, Any]) -> Callable[..., Any]:
    """The same code, in which these global names mean something else."""
    plain: Any = function
    copy: Any = FunctionType(
        plain.__code__, {**plain.__globals__, **names}, plain.__name__, plain.__defaults__, plain.__closure__
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    return functools.update_wrapper(copy, function)


class Overlay:
    """A namespace seen through: the names given are ours, all others the namespace's own."""

    def __init__(self, below: Any, **names: Any) -> None:
        self.__dict__.update(names)
        self.__dict__["_below"] = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_below"], name)


@functools.lru_cache(maxsize=512)
def tree_of(function: Callable[..., Any]) -> ast.FunctionDef | None:
    """The syntax tree of a function's definition, inside all decorators; `None` where there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return None
    node = tree.body[0] if tree.body else None
    return node if isinstance(node, ast.FunctionDef) else None

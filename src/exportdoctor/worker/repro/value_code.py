"""Code that makes an equal value, whatever it is: containers, objects of the user's, tensors by shape."""

from __future__ import annotations

import ast
import enum
import functools
import types
from abc import abstractmethod
from typing import Any

import torch

from exportdoctor.worker.repro.definitions import Definitions
from exportdoctor.worker.repro.literals import plain_code, tensor_code
from exportdoctor.worker.repro.prune import (
    first_line,
)
from exportdoctor.worker.repro.source_lookup import class_source

_DEPTH = 6
_DICTS = (types.MappingProxyType,)


class Objects(Definitions):
    """The layer that builds values; modules are for the one above it."""

    @abstractmethod
    def instance(self, module: torch.nn.Module, *, spelled: tuple[str, ...] = ()) -> str:
        """The code that builds an equal module."""

    def value(self, value: Any, *, depth: int = 0, whole: bool = False) -> str:
        """The code that makes an equal value; `whole` keeps every attribute of an object. Raises LookupError."""
        code = plain_code(value)
        if code is not None:
            return code
        if depth > _DEPTH:
            raise LookupError("nested too deeply")
        if isinstance(value, torch.nn.Parameter):
            return f"torch.nn.Parameter({tensor_code(value)})"
        if isinstance(value, torch.Tensor):
            return tensor_code(value)
        if isinstance(value, torch.nn.Module):
            return self.instance(value)
        if isinstance(value, types.ModuleType):
            return self.module(value)
        inner = functools.partial(self.value, depth=depth + 1, whole=whole)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self.known(type(value))}({', '.join(map(inner, value))})"
        if type(value) is tuple:
            return f"({', '.join(map(inner, value))}{',' * (len(value) == 1)})"
        if type(value) is list:
            return f"[{', '.join(map(inner, value))}]"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__}([{', '.join(map(inner, value))}])"
        if isinstance(value, dict) and type(value) is not dict and all(_is_attribute(value, key) for key in value):
            self._imports["types"] = None  # an output class of transformers: a dict with its keys as attributes
            return f"types.SimpleNamespace({', '.join(f'{key}={inner(item)}' for key, item in value.items())})"
        if type(value) in (dict, *_DICTS):
            return "{" + ", ".join(f"{inner(key)}: {inner(item)}" for key, item in value.items()) + "}"
        if isinstance(value, functools.partial):
            self._imports["functools"] = None
            keywords = "".join(f", {key}={inner(item)}" for key, item in value.keywords.items())
            return f"functools.partial({', '.join(map(inner, (value.func, *value.args)))}{keywords})"
        if isinstance(value, types.MethodType) and self._owners and value.__self__ is self._owners[-1]:
            return f"self.{value.__name__}"
        if isinstance(value, enum.Enum):
            return f"{self.known(type(value))}.{value.name}"
        known = self.known(value)
        return known if known is not None else self._object(value, depth=depth, whole=whole)

    def _object(self, value: Any, *, depth: int, whole: bool) -> str:
        """An object of the user's: its class with a constructor that takes the state, or a bare namespace."""
        kind = type(value)
        state = getattr(value, "__dict__", None)
        if state is None or isinstance(value, dict | list | types.MethodType):
            raise LookupError(f"{kind.__qualname__} object")
        wanted = {
            name: getattr(value, name) for name in state
            if whole or self.mentioned is None or name in self.mentioned
        }  # fmt: skip
        parts = []
        for name, item in wanted.items():
            try:
                parts.append(f"{name}={self.value(item, depth=depth + 2, whole=whole)}")
            except LookupError:
                continue
        if not whole and not self._has_run(kind):
            self._imports["types"] = None
            return f"types.SimpleNamespace({', '.join(parts)})"
        node, path, space = class_source(kind)
        if node is None:
            raise LookupError(f"{kind.__qualname__} object")
        key = ("object", kind)
        name = next((known for known, taken in self._taken.items() if taken == key), "")
        if not name:
            name = self.free_name(kind.__name__, key)
            init = ast.parse("def __init__(self, **state):\n    self.__dict__.update(state)").body[0]
            methods = [
                self.pruned(part, path, part.name) for part in node.body
                if isinstance(part, ast.FunctionDef) and part.name != "__init__" and self.code_ran(path, part)
            ]  # fmt: skip
            new = ast.ClassDef(name, [], [], [init, *methods], [])
            self.define(name, new, space, rename={node.name: name})
            self.carry_registrations(node.name, space, path)
        return f"{name}({', '.join(parts)})"

    def _has_run(self, kind: type) -> bool:
        """Whether any method of a class did."""
        node, path, _ = class_source(kind)
        methods = node.body if node is not None else []
        return self.record is None or any(
            isinstance(part, ast.FunctionDef) and (path, first_line(part)) in self.record.codes for part in methods
        )


def _is_attribute(value: Any, key: Any) -> bool:
    return isinstance(key, str) and key.isidentifier() and getattr(value, key, None) is value[key]

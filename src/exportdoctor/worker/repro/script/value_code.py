"""Code that makes an equal value, whatever it is: containers, objects of the user's, tensors by shape."""

from __future__ import annotations

import ast
import contextlib
import enum
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from exportdoctor.worker.repro.script.definitions import DefinitionWriter
from exportdoctor.worker.repro.script.literals import plain_code, tensor_code
from exportdoctor.worker.repro.script.prune import CodeSelection
from exportdoctor.worker.repro.script.script_text import ScriptText
from exportdoctor.worker.repro.script.source_lookup import class_source

_DEPTH = 6
_DICTS = (types.MappingProxyType,)


class ValueWriter:
    """Writes values; the code of a module comes from `write_module`."""

    def __init__(
        self,
        text: ScriptText,
        selection: CodeSelection,
        definitions: DefinitionWriter,
        write_module: Callable[[torch.nn.Module], str],
    ) -> None:
        self._text = text
        self._selection = selection
        self._definitions = definitions
        self._write_module = write_module
        self.known: Mapping[int, str] = {}

    def code_of(self, value: Any, *, owner: torch.nn.Module | None = None, depth: int = 0, whole: bool = False) -> str:
        """The code that makes an equal value. Raises LookupError.

        `owner` is the module whose attribute it is; `whole` keeps every attribute of an object.
        """
        code = self.known.get(id(value)) or plain_code(value)
        if code is not None:
            return code
        if depth > _DEPTH:
            raise LookupError("nested too deeply")
        if isinstance(value, torch.nn.Parameter):
            return f"torch.nn.Parameter({tensor_code(value)})"
        if isinstance(value, torch.Tensor):
            return tensor_code(value)
        if isinstance(value, torch.nn.Module):
            return self._write_module(value)
        if isinstance(value, types.ModuleType):
            return self._text.import_module(value)
        inner = functools.partial(self.code_of, owner=owner, depth=depth + 1, whole=whole)
        container = self._container(value, inner)
        if container is not None:
            return container
        if isinstance(value, types.MethodType) and owner is not None and value.__self__ is owner:
            return f"self.{value.__name__}"
        names = self._definitions.names
        if isinstance(value, enum.Enum):
            return f"{names.code_of_value(type(value))}.{value.name}"
        known = names.code_of_value(value)
        return known if known is not None else self._object(value, owner=owner, depth=depth, whole=whole)

    def _container(self, value: Any, inner: Callable[[Any], str]) -> str | None:
        """The code of a value that holds others; None for one that does not."""
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self._definitions.names.code_of_value(type(value))}({', '.join(map(inner, value))})"
        if type(value) is tuple:
            return f"({', '.join(map(inner, value))}{',' * (len(value) == 1)})"
        if type(value) is list:
            return f"[{', '.join(map(inner, value))}]"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__}([{', '.join(map(inner, value))}])"
        if isinstance(value, dict) and type(value) is not dict and all(_is_attribute(value, key) for key in value):
            # an output class of transformers: a dict with its keys as attributes
            return self._stand_in(type(value), {key: inner(item) for key, item in value.items()})
        if type(value) in (dict, *_DICTS):
            return "{" + ", ".join(f"{inner(key)}: {inner(item)}" for key, item in value.items()) + "}"
        if isinstance(value, functools.partial):
            self._text.import_module("functools")
            keywords = "".join(f", {key}={inner(item)}" for key, item in value.keywords.items())
            return f"functools.partial({', '.join(map(inner, (value.func, *value.args)))}{keywords})"
        return None

    def _object(self, value: Any, *, owner: torch.nn.Module | None, depth: int, whole: bool) -> str:
        """An object of the user's: its class with a constructor that takes the state, or one that only holds it."""
        kind = type(value)
        state = getattr(value, "__dict__", None)
        if state is None or isinstance(value, dict | list | types.MethodType):
            raise LookupError(f"{kind.__qualname__} object")
        parts: dict[str, str] = {}
        asked = {name: getattr(value, name) for name in state if whole or self._selection.mentions(name)}
        for name in _properties(kind):
            if name not in state and self._selection.mentions(name):
                with contextlib.suppress(Exception):  # the target's code
                    asked[name] = getattr(value, name)
        for name, held in asked.items():
            with contextlib.suppress(LookupError):
                parts[name] = self.code_of(held, owner=owner, depth=depth + 2, whole=whole)
        if not whole and not self._has_run(kind):
            return self._stand_in(kind, parts)
        given = ", ".join(f"{name}={code}" for name, code in parts.items())
        return f"{self._definitions.carry_object_class(kind)}({given})"

    def _stand_in(self, kind: type, parts: Mapping[str, str]) -> str:
        """An instance of a class with these attributes and nothing else; equal ones share a class."""
        fields = {name: code for name, code in parts.items() if name.isidentifier() and "self." not in code}
        lines = [f"    {name} = {code}" for name, code in fields.items()] or ["    pass"]
        name = self._text.free_name(kind.__name__, ("stand-in", kind, *lines))
        self._text.define(name, "\n".join([f"class {name}:", *lines]))
        return f"{name}()"

    def _has_run(self, kind: type) -> bool:
        """Whether any method of a class did."""
        node, path, _ = class_source(kind)
        methods = node.body if node is not None else []
        return self._selection.record is None or any(
            isinstance(part, ast.FunctionDef) and self._selection.has(path, part) for part in methods
        )


def _properties(kind: type) -> list[str]:
    """The properties that it has and inherits: a stand-in has their values, since it has no bases."""
    return [name for base in kind.__mro__ for name, member in vars(base).items() if isinstance(member, property)]


def _is_attribute(value: Any, key: Any) -> bool:
    return isinstance(key, str) and key.isidentifier() and getattr(value, key, None) is value[key]

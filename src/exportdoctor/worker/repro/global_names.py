"""What to write for a global name of the user's code: a name of torch, a literal, a definition, at last an import."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import logging
import os
import sys
import types
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from exportdoctor.core.failure.frames import TRACER_PACKAGES, is_user_file
from exportdoctor.worker.repro.literals import plain_code, torch_name
from exportdoctor.worker.repro.prune import (
    top_level,
    tree_of,
)
from exportdoctor.worker.repro.script_text import Sheet


class Naming(Sheet):
    """The layer that resolves names; definitions are for those above it."""

    @abstractmethod
    def function(self, function: types.FunctionType) -> str:
        """The name of a user's function, carried by its source."""

    @abstractmethod
    def raw_class(self, kind: type) -> str:
        """The name of a user's class, carried by its source."""

    @abstractmethod
    def define(self, name: str, node: ast.stmt, space: Mapping[str, Any], *, rename: dict[str, str]) -> None:
        """Write a definition, after what it refers to."""

    def resolve(self, name: str, space: Mapping[str, Any]) -> str | None:
        """What to write for the global `name` of a module with the globals `space`; None for a builtin."""
        if name not in space:
            return None if hasattr(builtins, name) else name
        value = space[name]
        if isinstance(value, types.ModuleType):
            return self.module(value)
        code = self.known(value)
        if code is not None:
            return code
        return self.from_source(name, space) or self.imported(name, space)

    def known(self, value: Any) -> str | None:
        """The code of a value that can be told without its source."""
        code = plain_code(value)
        if code is not None:
            return code
        if isinstance(value, logging.Logger):
            self._imports["logging"] = None
            return "logging.getLogger()"
        if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return f"torch.ops.{value}".replace("::", ".")
        module = getattr(value, "__module__", None)
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | functools._lru_cache_wrapper):
            if isinstance(module, str) and self._is_foreign(module, value):
                return self._foreign(value, module)
            name = str(getattr(value, "__name__", ""))
            if module is None and getattr(torch, name, None) is value:
                return f"torch.{name}"
            if isinstance(value, type):
                return self.raw_class(value)
            if isinstance(value, types.FunctionType):
                return self.function(value)
        name = str(getattr(value, "__name__", ""))
        return f"torch.{name}" if callable(value) and getattr(torch, name, None) is value else None

    @staticmethod
    def _is_foreign(module: str, value: Any) -> bool:
        """Whether it is torch's, Python's or a library's of the tracer: importable anywhere torch is."""
        if module.partition(".")[0] in TRACER_PACKAGES:
            return True
        file = getattr(sys.modules.get(module), "__file__", None)
        return (file is not None and not is_user_file(file)) or module in sys.stdlib_module_names

    def _foreign(self, value: Any, module: str) -> str:
        if module == "builtins":
            return str(value.__qualname__)
        if module.partition(".")[0] in ("torch", "functorch"):
            return torch_name(value)
        self._imports[module] = None
        return f"{module}.{value.__qualname__}"

    def imported(self, name: str, space: Mapping[str, Any], *, why: str = "") -> str:
        """The last resort: import it from where the user's code has it; where that is not installed, by its folder."""
        module, file = str(space.get("__name__", "")), str(space.get("__file__") or "")
        if os.path.isfile(file) and not {"site-packages", "dist-packages"} & set(Path(file).parts):
            place = Path(file).parent if Path(file).name == "__init__.py" else Path(file)
            module = ".".join((*module.split(".")[:-1], place.stem))
            self._folders[str(place.parents[module.count(".")])] = None
            self._imports["sys"] = None
        self._imports[f"from {module} import {name}"] = None
        self._taken[name] = (module, name)
        reason = f" ({why})" if why else ""
        self.notes.append(f"{name} has no source that a script can carry{reason}, so it is imported from {module}")
        return name

    def from_source(self, name: str, space: Mapping[str, Any]) -> str | None:
        """Carry the statement that binds `name` at its module's top level."""
        path = space.get("__file__")
        statement = top_level(path, name) if isinstance(path, str) else None
        match statement:
            case ast.ImportFrom():
                origin = self._origin(statement, space)
                alias = next(alias for alias in statement.names if (alias.asname or alias.name) == name)
                if origin is None or not isinstance(getattr(origin, "__file__", None), str):
                    return None
                return self.resolve(alias.name, vars(origin)) if is_user_file(str(origin.__file__)) else None
            case ast.Assign() | ast.AnnAssign() | ast.FunctionDef():
                return self._statement(name, statement, space, str(path))
        return None

    @staticmethod
    def _origin(statement: ast.ImportFrom, space: Mapping[str, Any]) -> types.ModuleType | None:
        name = "." * statement.level + (statement.module or "")
        try:
            return importlib.import_module(name, space.get("__package__") or space.get("__name__"))
        except ImportError:
            return None

    def _statement(self, name: str, statement: ast.stmt, space: Mapping[str, Any], path: str) -> str:
        """A top-level assignment or decorated function, as it stands."""
        key = (path, statement.lineno)
        for known, taken in self._taken.items():
            if taken == key and known == name:
                return known
        name_here = self.free_name(name, key)
        if name_here in self._open:
            return name_here
        self._open.add(name_here)
        self.define(name_here, statement, space, rename={name: name_here})
        self.carry_registrations(name, space, path)
        return name_here

    def carry_registrations(self, name: str, space: Mapping[str, Any], path: str) -> None:
        """Statements at the same file's top level that register something for `name`, such as a fake kernel."""
        for statement in tree_of(path).body:
            called = [statement.value] if isinstance(statement, ast.Expr) else getattr(statement, "decorator_list", [])
            if isinstance(statement, ast.ClassDef) or getattr(statement, "name", "") == name:
                continue
            if any(isinstance(node, ast.Name) and node.id == name for call in called for node in ast.walk(call)):
                key = (path, statement.lineno)
                if key not in self._taken.values():
                    self.define(
                        self.free_name(getattr(statement, "name", f"_{name}"), key), statement, space, rename={}
                    )

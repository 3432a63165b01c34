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
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from exportdoctor.core.failure.frames import TRACER_PACKAGES, is_user_file
from exportdoctor.core.protocol.repro import ImportNote
from exportdoctor.report import wording
from exportdoctor.torch_internals.tracer_frames import is_operator, is_operator_family
from exportdoctor.worker.repro.script.literals import expression, plain_code, plain_container, torch_name
from exportdoctor.worker.repro.script.prune import ReturnedFunction
from exportdoctor.worker.repro.script.script_text import ScriptText
from exportdoctor.worker.repro.script.source_lookup import binding_statement


class DefinitionCarrier(Protocol):
    """Writes definitions into the script, from their source. Each method returns the name in the script."""

    def carry_function(self, function: types.FunctionType) -> str:
        """A user's function. Raises LookupError where it has no source."""

    def carry_class(self, kind: type) -> str:
        """A user's class. Raises LookupError where it has no source."""

    def carry_statement(self, name: str, statement: ast.stmt, space: Mapping[str, Any], path: str) -> str:
        """The top-level statement that binds `name` in the file at `path`."""


class NameResolver:
    """Finds the code for global names and for values that have a name. `space` is always a module's globals."""

    def __init__(self, text: ScriptText, carrier: DefinitionCarrier) -> None:
        self._text = text
        self._carrier = carrier

    def rename_globals(self, node: ast.stmt, space: Mapping[str, Any], *, rename: Mapping[str, str]) -> Any:
        """A copy of a definition in which each global name is what the script calls it; `rename` comes first."""
        loaded = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
        return _GlobalRenamer(self, space, rename, _bound_names(node), loaded).visit(_copy(node))

    def absolute_import(self, statement: ast.ImportFrom, space: Mapping[str, Any]) -> str:
        """The module from which a relative import takes its names; it is noted, for the script needs its package."""
        origin = _imported_module(statement, space)
        module = origin.__name__ if origin is not None else str(statement.module or "")
        name = statement.names[0].name
        self._text.imports.append(ImportNote(module=module, text=wording.repro_without_source(name, module, "")))
        return module

    def code_for(self, name: str, space: Mapping[str, Any]) -> str | None:
        """The code that defines the global `name`; None for a builtin. One without source is imported, with a note."""
        try:
            return self._resolve(name, space)
        except LookupError as error:
            return self._from_source(name, space) or self._import(name, space, why=str(error))

    def _resolve(self, name: str, space: Mapping[str, Any]) -> str | None:
        if name not in space:
            return None if hasattr(builtins, name) else name
        value = space[name]
        if isinstance(value, types.ModuleType):
            return self._text.import_module(value)
        return self.code_of_value(value) or self._from_source(name, space) or self._import(name, space)

    def code_of_value(self, value: Any) -> str | None:
        """The code of a value that has a literal, a name or a definition; None for another. Raises LookupError."""
        code = plain_code(value)
        if code is not None:
            return code
        if isinstance(value, logging.Logger):
            self._text.import_module("logging")
            return "logging.getLogger()"
        if getattr(typing, name := str(getattr(value, "_name", "")), None) is value:
            self._text.import_module("typing")
            return f"typing.{name}"
        if is_operator(value) or is_operator_family(value):
            return f"torch.ops.{value}".replace("::", ".")
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | functools._lru_cache_wrapper):
            module = getattr(value, "__module__", None)
            if isinstance(module, str) and is_importable(module):
                return self._code_in_module(value, module)
            if module is None and _is_torch_function(value):
                return f"torch.{value.__name__}"
            if isinstance(value, type):
                return self._carrier.carry_class(value)
            if isinstance(value, types.FunctionType):
                return self._carrier.carry_function(value)
        return f"torch.{value.__name__}" if callable(value) and _is_torch_function(value) else None

    def _code_in_module(self, value: Any, module: str) -> str:
        if module == "builtins":
            return str(value.__qualname__)
        if module.partition(".")[0] in ("torch", "functorch"):
            return torch_name(value)
        self._text.import_module(module)
        return f"{module}.{value.__qualname__}"

    def _from_source(self, name: str, space: Mapping[str, Any]) -> str | None:
        """Carry the statement that binds `name` at its module's top level."""
        path = space.get("__file__")
        statement = binding_statement(path, name) if isinstance(path, str) else None
        match statement:
            case ast.ImportFrom():
                origin = _imported_module(statement, space)
                alias = next(alias for alias in statement.names if (alias.asname or alias.name) == name)
                if origin is None or not isinstance(getattr(origin, "__file__", None), str):
                    return None
                return self._resolve(alias.name, vars(origin)) if is_user_file(str(origin.__file__)) else None
            case ast.Assign() | ast.AnnAssign() | ast.FunctionDef():
                made = _with_value(statement, name, space.get(name))
                return self._carrier.carry_statement(name, made, space, str(path))
        return None

    def _import(self, name: str, space: Mapping[str, Any], *, why: str = "") -> str:
        """The last resort: import it from where the user's code has it; where that is not installed, by its folder."""
        module, file, folder = str(space.get("__name__", "")), str(space.get("__file__") or ""), ""
        if os.path.isfile(file) and not {"site-packages", "dist-packages"} & set(Path(file).parts):
            place = Path(file).parent if Path(file).name == "__init__.py" else Path(file)
            module = ".".join((*module.split(".")[:-1], place.stem))
            folder = str(place.parents[module.count(".")])
        self._text.import_name(name, module, folder=folder)
        self._text.imports.append(ImportNote(module=module, text=wording.repro_without_source(name, module, why)))
        return name


def _with_value(statement: ast.stmt, name: str, value: Any) -> ast.stmt:
    """An assignment with the plain values that it computed, in place of calls whose code ran when it was imported."""
    called = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    runs_code = any(not isinstance(func, ast.Name) or not hasattr(builtins, func.id) for func in called)
    code = plain_container(value) if runs_code and isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if code is None:
        return statement
    new = ast.Assign([ast.Name(name, ast.Store())], ast.parse(code, mode="eval").body)
    return ast.copy_location(new, statement)


def _is_torch_function(value: Any) -> bool:
    return getattr(torch, str(getattr(value, "__name__", "")), None) is value


def is_importable(module: str) -> bool:
    """Whether a module is torch's, Python's or a library's of the tracer: importable anywhere torch is."""
    if module.partition(".")[0] in TRACER_PACKAGES:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return (file is not None and not is_user_file(file)) or module in sys.stdlib_module_names


def _imported_module(statement: ast.ImportFrom, space: Mapping[str, Any]) -> types.ModuleType | None:
    name = "." * statement.level + (statement.module or "")
    try:
        return importlib.import_module(name, space.get("__package__") or space.get("__name__"))
    except ImportError:
        return None


class _GlobalRenamer(ast.NodeTransformer):
    """Replaces global names; names that are `bound` in the definition are local and stay, `loaded` are those in use."""

    def __init__(
        self,
        names: NameResolver,
        space: Mapping[str, Any],
        rename: Mapping[str, str],
        bound: set[str],
        loaded: set[str],
    ) -> None:
        self.names = names
        self.space = space
        self.rename = rename
        self.bound = bound
        self.loaded = loaded

    def visit_Name(self, node: ast.Name) -> Any:
        """A global's new name; local ones stay."""
        if isinstance(node, ReturnedFunction):
            module = sys.modules.get(node.module)
            code = self.names.code_for(node.id, vars(module)) if module else None
            return expression(code or node.id)
        if node.id in self.rename:
            return ast.Name(self.rename[node.id], node.ctx)
        if node.id in self.bound or not isinstance(node.ctx, ast.Load):
            return node
        code = self.names.code_for(node.id, self.space)
        return node if code is None else expression(code)

    visit_ReturnedFunction = visit_Name  # NodeTransformer dispatches by the name of the node's class

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """An attribute of one of the user's modules is a global of that module."""
        if isinstance(node.value, ast.Name) and node.value.id not in self.bound and isinstance(node.ctx, ast.Load):
            value = self.space.get(node.value.id)
            file = getattr(value, "__file__", None)
            if isinstance(value, types.ModuleType) and file and is_user_file(file):
                code = self.names.code_for(node.attr, vars(value))
                return expression(code or node.attr)
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """A relative import has no package in the script: it goes if nothing uses its names, or becomes absolute."""
        if not node.level:
            return node
        if not {alias.asname or alias.name for alias in node.names} & self.loaded:
            return ast.Pass()
        module = self.names.absolute_import(node, self.space)
        return ast.ImportFrom(module, node.names, 0)


def _bound_names(definition: ast.stmt) -> set[str]:
    """The names that a definition binds inside: its parameters, and all that it assigns, imports or defines."""
    bound: set[str] = set()
    for node in ast.walk(definition):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                bound |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if node is not definition:
                if not isinstance(definition, ast.ClassDef):
                    bound.add(name)
    return bound


def _copy(node: Any) -> Any:
    """A deep copy of a tree, with `ReturnedFunction` names as they are."""
    if isinstance(node, ReturnedFunction):
        return ReturnedFunction(id=node.id, ctx=node.ctx, module=node.module)
    if isinstance(node, ast.AST):
        new = type(node)(**{name: _copy(value) for name, value in ast.iter_fields(node)})
        return ast.copy_location(new, node) if hasattr(node, "lineno") else new
    return [_copy(item) for item in node] if isinstance(node, list) else node

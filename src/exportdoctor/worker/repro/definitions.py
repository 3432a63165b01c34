"""Carries functions and classes of the user's by their source, cut to what ran."""

from __future__ import annotations

import ast
import enum
import inspect
import types
from collections.abc import Mapping
from typing import Any

from exportdoctor.worker.repro.global_names import Naming
from exportdoctor.worker.repro.prune import (
    Pruned,
    definition_at,
    first_line,
    tree_of,
)
from exportdoctor.worker.repro.renaming import Renamed
from exportdoctor.worker.repro.source_lookup import class_source, scope_of

_MOST = 150
_KEPT_DECORATORS = ("staticmethod", "classmethod", "property", "torch", "functools", "contextlib", "dataclass")


class Definitions(Naming):
    """The layer that writes definitions."""

    def define(self, name: str, node: ast.stmt, space: Mapping[str, Any], *, rename: dict[str, str]) -> None:
        """Write a definition, after what it refers to."""
        if len(self._text) >= _MOST:
            raise OverflowError(f"it refers to more than {_MOST} definitions")
        resolved = Renamed(self, space, rename).over(node)
        self._text[name] = ast.unparse(ast.fix_missing_locations(resolved))

    def function(self, function: types.FunctionType) -> str:
        """A user's function by its source. Falls back to an import."""
        code = inspect.unwrap(function).__code__
        key = ("function", code.co_filename, code.co_firstlineno, code.co_name)
        for known, taken in self._taken.items():
            if taken == key:
                return known
        node = definition_at(code.co_filename, code.co_firstlineno, code.co_name)
        space = scope_of(inspect.unwrap(function))
        if node is None:
            return self._without_definition(function, code, key, space)
        name = self.free_name(code.co_name, key)
        if self._wants_decorators(node):
            self.define(name, node, space, rename={node.name: name})
            self.carry_registrations(node.name, space, code.co_filename)
            return name
        self.define(name, self.pruned(node, code.co_filename, name), space, rename={node.name: name})
        return name

    def _without_definition(self, function: Any, code: types.CodeType, key: Any, space: Mapping[str, Any]) -> str:
        """A lambda, or code made by exec."""
        for node in ast.walk(tree_of(code.co_filename)):
            if not isinstance(node, ast.Lambda) or node.lineno != code.co_firstlineno:
                continue
            if [a.arg for a in node.args.args] == list(code.co_varnames[: code.co_argcount]):
                name = self.free_name("function", key)
                target: list[ast.expr] = [ast.Name(name, ast.Store())]
                self.define(name, ast.Assign(target, node, lineno=1), space, rename={})
                return name
        raise LookupError(f"{code.co_name} has no source ({code.co_filename})")

    def _wants_decorators(self, node: Any) -> bool:
        """A custom operator's schema is read from its annotations, so such a function stays as it is."""
        return any("library" in ast.unparse(one) or "custom_op" in ast.unparse(one) for one in node.decorator_list)

    def pruned(self, node: Any, path: str, name: str) -> Any:
        """A function's definition without what did not run."""
        record = self.record
        if record is not None and (path, first_line(node)) not in record.codes:
            record = None
        pruned = Pruned(path, record, substitute=self.substitute)
        new = pruned._with_bodies(node)
        new.name = name
        new.decorator_list = [d for d in node.decorator_list if self.decorators or _is_kept(d)]
        return new

    def raw_class(self, kind: type) -> str:
        """A user's class as its source has it, with the methods that ran."""
        key = ("class", kind)
        for known, taken in self._taken.items():
            if taken == key:
                return known
        node, path, space = class_source(kind)
        if node is None:
            if issubclass(kind, tuple) and hasattr(kind, "_fields"):
                self._imports["collections"] = None
                name = self.free_name(kind.__name__, key)
                fields = list(kind._fields)  # type: ignore[attr-defined]
                self._text[name] = f"{name} = collections.namedtuple({kind.__name__!r}, {fields!r})"
                return name
            raise LookupError(f"class {kind.__qualname__} has no source")
        name = self.free_name(kind.__name__, key)
        data = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        enumerated = issubclass(kind, enum.Enum)
        body: list[ast.stmt] = []
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                if self.record is None or self.code_ran(path, part) or enumerated:
                    body.append(self.pruned(part, path, part.name))
            elif isinstance(part, ast.AnnAssign) and data:
                body.append(ast.AnnAssign(part.target, ast.Name("object", ast.Load()), part.value, 1))
            elif isinstance(part, ast.Assign | ast.AnnAssign | ast.ClassDef):
                body.append(part)
        new = ast.ClassDef(name, node.bases, node.keywords, body or [ast.Pass()],
                           [d for d in node.decorator_list if self.decorators or _is_kept(d)])  # fmt: skip
        self.define(name, new, space, rename={node.name: name})
        self.carry_registrations(node.name, space, path)
        return name

    def code_ran(self, path: str, node: ast.FunctionDef) -> bool:
        """Whether a function ran, or nobody watched."""
        return self.record is None or (path, first_line(node)) in self.record.codes


def _is_kept(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith(_KEPT_DECORATORS)

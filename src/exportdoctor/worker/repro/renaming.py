"""Puts for each global name in a definition what the script calls it; local names stay."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Mapping
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.worker.repro.global_names import Naming
from exportdoctor.worker.repro.literals import expression
from exportdoctor.worker.repro.prune import (
    Returned,
)


class Renamed(ast.NodeTransformer):
    """Puts for each global name what the script calls it."""

    def __init__(self, script: Naming, space: Mapping[str, Any], rename: dict[str, str]) -> None:
        self.script = script
        self.space = space
        self.rename = rename
        self.bound: set[str] = set()

    def over(self, node: ast.stmt) -> Any:
        """The definition with its global names replaced."""
        for inner in ast.walk(node):
            match inner:
                case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                    self.bound.add(name)
                case ast.ExceptHandler(name=str(name)):
                    self.bound.add(name)
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    self.bound |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if inner is not node:
                    if not isinstance(node, ast.ClassDef):
                        self.bound.add(name)
        return self.visit(_copied(node))

    def visit_Name(self, node: ast.Name) -> Any:
        """A global's new name; local ones stay."""
        if isinstance(node, Returned):
            module = sys.modules.get(node.module)
            code = self._resolved(node.id, vars(module)) if module else None
            return expression(code or node.id)
        if node.id in self.rename:
            return ast.Name(self.rename[node.id], node.ctx)
        if node.id in self.bound or not isinstance(node.ctx, ast.Load):
            return node
        code = self._resolved(node.id, self.space)
        return node if code is None else expression(code)

    visit_Returned = visit_Name  # transformers dispatch by the name of the node's class

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """An attribute of one of the user's modules is a global of that module."""
        if isinstance(node.value, ast.Name) and node.value.id not in self.bound and isinstance(node.ctx, ast.Load):
            value = self.space.get(node.value.id)
            file = getattr(value, "__file__", None)
            if isinstance(value, types.ModuleType) and file and is_user_file(file):
                code = self._resolved(node.attr, vars(value))
                return expression(code or node.attr)
        return self.generic_visit(node)

    def _resolved(self, name: str, space: Mapping[str, Any]) -> str | None:
        try:
            return self.script.resolve(name, space)
        except LookupError as error:
            source = self.script.from_source(name, space)
            return source or self.script.imported(name, space, why=str(error))


def _copied(node: Any) -> Any:
    """A deep copy of a tree, with `Returned` names as they are."""
    if isinstance(node, Returned):
        return Returned(id=node.id, ctx=node.ctx, module=node.module)
    if isinstance(node, ast.AST):
        new = type(node)(**{name: _copied(value) for name, value in ast.iter_fields(node)})
        return ast.copy_location(new, node) if hasattr(node, "lineno") else new
    return [_copied(item) for item in node] if isinstance(node, list) else node

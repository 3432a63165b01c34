"""Finds the source of a class or function of the user's, and which names its code sees."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
import types
from functools import lru_cache
from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@lru_cache(maxsize=256)
def tree_of(path: str) -> ast.Module:
    """The syntax tree of a source file; an empty one where it has none."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def start_line(node: Definition) -> int:
    """The line of a definition's first decorator, or its own: what `co_firstlineno` says."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


@lru_cache(maxsize=4096)
def definition_at(path: str, line: int, name: str) -> Any:
    """The function or class called `name` whose first line is `line`; None where there is none."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, Definition) and node.name == name and line in (start_line(node), node.lineno):
            return node
    return None


def binding_statement(path: str, name: str) -> ast.stmt | None:
    """The last statement at a module's top level that binds `name`, inside `if` and `try` too."""
    found = None
    for statement in _module_statements(tree_of(path).body):
        if name in _names_bound_by(statement):
            found = statement
    return found


def _module_statements(body: list[ast.stmt]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.If | ast.Try):
            inner = [*statement.body, *statement.orelse]
            found += _module_statements(inner)
        else:
            found.append(statement)
    return found


def _names_bound_by(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).partition(".")[0] for alias in names}
        case ast.Assign(targets=targets):
            return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return {name}
    return set()


def scope_of(function: types.FunctionType) -> dict[str, Any]:
    """A function's globals with the variables that it closes over."""
    space = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            space[name] = cell.cell_contents
        except ValueError:
            continue
    return space


def class_source(kind: type) -> tuple[Any, str, dict[str, Any]]:
    """A class's definition, its file, and the globals that its methods see; None for one without source."""
    module = sys.modules.get(kind.__module__)
    functions = [v for v in vars(kind).values() if isinstance(v, types.FunctionType)]
    user = [f for f in map(inspect.unwrap, functions) if os.path.isfile(f.__code__.co_filename)]
    own = [f for f in user if f.__qualname__.startswith(f"{kind.__qualname__}.")]
    path = getattr(module, "__file__", None) or (own[0].__code__.co_filename if own else None)
    space = dict(vars(module)) if module and not own else {}
    for function in own:  # each closes over names of its own
        space |= scope_of(function)
    if not isinstance(path, str):
        return None, "", {}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            inside = any(node.lineno <= f.__code__.co_firstlineno <= (node.end_lineno or 0) for f in own)
            if inside or not own:
                if module is None:
                    space = {**space}
                return node, path, space
    return None, path, space

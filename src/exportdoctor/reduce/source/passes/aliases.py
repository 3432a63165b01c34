"""Takes second names of a value out of a reduced script, and values that nothing reads."""

from __future__ import annotations

import ast
from collections import Counter


def drop_aliases(source: str) -> str:
    """`source` in which each function has one name for a value (`y = x`), and none for what only reads an unused one.

    Only names that are set once are taken, by a statement of the function's own; a call is never dropped.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not _has_inner_scope(node):
            while _drop_one(node):
                pass
    return ast.unparse(ast.fix_missing_locations(tree))


def _has_inner_scope(function: ast.FunctionDef) -> bool:
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Global, ast.Nonlocal)
    return any(isinstance(node, scopes) for node in ast.walk(function) if node is not function)


def _drop_one(function: ast.FunctionDef) -> bool:
    """Drop one statement that names a value again, or names one that nothing reads; whether there was one."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    written = Counter(node.id for node in names if not isinstance(node.ctx, ast.Load))
    read = Counter(node.id for node in names if isinstance(node.ctx, ast.Load))
    arguments = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if written[name] == 1 and name not in arguments:
                if not read[name] and not any(isinstance(node, ast.Call) for node in ast.walk(value)):
                    return _drop(function, statement)
                if isinstance(value, ast.Name) and written[value.id] + (value.id in arguments) == 1:
                    for node in names:
                        node.id = value.id if node.id == name else node.id
                    return _drop(function, statement)
    return False


def _drop(function: ast.FunctionDef, statement: ast.stmt) -> bool:
    function.body = [one for one in function.body if one is not statement] or [ast.Pass()]
    return True

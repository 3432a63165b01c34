"""Makes a reduced script nicer to read: without statements that do nothing, its exported class under a plain name."""

from __future__ import annotations

import ast


def drop_idle_statements(source: str) -> str:
    """`source` without statements that do nothing, which a search that was cut off leaves in functions and classes."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and not isinstance(node, ast.Module):
            node.body = [one for one in body if not _is_idle(one)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_idle(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant | ast.Name)
    )


def rename_exported_class(source: str, name: str) -> str:
    """`source` with `name` for the class that is exported: its own means nothing without the model."""
    tree = ast.parse(source)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    root = exported_class(tree)
    if root is None or name in names:
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == root.name:
            node.id = name
    root.name = name
    return ast.unparse(tree)


def exported_class(tree: ast.Module) -> ast.ClassDef | None:
    """The first class that the script's last statement names."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    named = {node.id for node in ast.walk(tree.body[-1]) if isinstance(node, ast.Name)} if classes else set()
    return next((one for one in classes if one.name in named), None)

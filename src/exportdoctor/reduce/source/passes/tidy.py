"""Makes a reduced script nicer to read: without statements that do nothing, its exported class under a plain name."""

from __future__ import annotations

import ast
from typing import Any


def drop_idle_statements(source: str) -> str:
    """`source` without statements that do nothing, which a search that was cut off leaves."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_idle(one)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_idle(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (isinstance(statement, ast.Expr) and _is_plain(statement.value))


def _is_plain(value: ast.expr) -> bool:
    """Whether it is a constant, a name, or some of them in a tuple or list."""
    if isinstance(value, ast.Tuple | ast.List):
        return all(map(_is_plain, value.elts))
    return isinstance(value, ast.Constant | ast.Name)


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
    """The class of what the script's last statement exports, if it is one of the script's own."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    match tree.body[-1:]:
        case [ast.Expr(ast.Call(args=[exported, *_]))]:
            names = (node.id for node in ast.walk(exported) if isinstance(node, ast.Name))
            return next((classes[name] for name in names if name in classes), None)
    return None


_NAMES = ("x", "y", "z")


def name_inputs(source: str) -> str:
    """`source` with a parameter for each input that the exported forward takes as `*args`."""
    tree = ast.parse(source)
    root = exported_class(tree)
    forward = next((part for part in root.body if getattr(part, "name", "") == "forward"), None) if root else None
    match forward, tree.body[-1]:
        case (
            ast.FunctionDef(args=ast.arguments(args=[_], vararg=ast.arg(arg=several), kwonlyargs=[])),
            ast.Expr(ast.Call(args=[_, ast.Tuple(elts=given), *_]) as call),
        ):
            assert isinstance(forward, ast.FunctionDef)
            names = [_NAMES[place] if place < len(_NAMES) else f"x{place + 1}" for place in range(len(given))]
            forward.args.vararg = None
            forward.args.args += [ast.arg(name) for name in names]
            forward.body = [_InputNamer(several, names).visit(statement) for statement in forward.body]
            for keyword in call.keywords:
                match keyword.value:
                    case ast.Dict(keys=[ast.Constant(value=key)], values=[shapes]) if key == several:
                        keyword.value = shapes
            return ast.unparse(ast.fix_missing_locations(tree))
    return source


class _InputNamer(ast.NodeTransformer):
    """Replaces `*args` by the names, and `args` by a tuple of them."""

    def __init__(self, several: str, names: list[str]) -> None:
        self.several = several
        self.names = names

    def _each(self) -> list[ast.expr]:
        return [ast.Name(name, ast.Load()) for name in self.names]

    def visit_Starred(self, node: ast.Starred) -> Any:
        """The names, in the place of one argument."""
        return self._each() if getattr(node.value, "id", "") == self.several else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        """A tuple of the names."""
        return ast.Tuple(self._each(), ast.Load()) if node.id == self.several else node

"""Replaces a module by its only child, or a stateless child by a function. Whether that is right is for the verdict."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from exportdoctor.reduce.search_protocol import Search
from exportdoctor.reduce.source.passes.tidy import exported_class


def inline_modules(source: str, reduce: Callable[[str], Search[str, str]]) -> Search[str, str]:
    """`source` with one level less as long as that is possible, reduced again after each."""
    while True:
        offered = tuple(one for one in dict.fromkeys(_with_one_level_less(source)) if one != source)
        index = (yield offered) if offered else None
        if index is None:
            return source
        source = yield from reduce(offered[index])


def _with_one_level_less(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    exported = exported_class(tree)
    root = exported.name if exported is not None else None
    for name in classes:
        if root is not None and name != root:
            yield _with_root(source, root, name)
    for name in classes:
        if name != root:
            yield from _as_function(source, name)


def _with_root(source: str, root: str, child: str) -> str:
    """The child is exported with what its parent was given, by the names that the child has for it."""
    tree = ast.parse(source)
    named = dict(zip(_parameters(tree, root), _parameters(tree, child), strict=False))
    for node in ast.walk(tree.body[-1]):
        if isinstance(node, ast.Name) and node.id == root:
            node.id = child
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and key.value in named:
                    key.value = named[key.value]
    tree.body = [one for one in tree.body if not (isinstance(one, ast.ClassDef) and one.name == root)]
    return ast.unparse(tree)


def _parameters(tree: ast.Module, owner: str) -> list[str]:
    """What the forward of a class takes, `self` left out."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == "forward":
                    return [one.arg for one in part.args.args[1:]]
    return []


def _as_function(source: str, name: str) -> Iterator[str]:
    """A child without state becomes a function of its forward's arguments."""
    tree = ast.parse(source)
    kind = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    methods = [part for part in kind.body if isinstance(part, ast.FunctionDef)]
    if len(methods) != 1 or methods[0].name != "forward" or not methods[0].args.args:
        return
    forward = methods[0]
    owner = forward.args.args.pop(0).arg
    if any(isinstance(node, ast.Name) and node.id == owner for node in ast.walk(forward)):
        return
    attributes = [
        node.targets[0].attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Attribute)
        and ast.unparse(node.value) == f"{name}()"
    ]
    if not attributes:
        return
    forward.name = attributes[0]
    tree.body[tree.body.index(kind)] = forward
    yield ast.unparse(ast.fix_missing_locations(_Calls(set(attributes), name, forward.name).visit(tree)))


class _Calls(ast.NodeTransformer):
    """Replaces `self.child(...)` by a call of the function, and drops `self.child = Child()`."""

    def __init__(self, attributes: set[str], kind: str, function: str) -> None:
        self.attributes = attributes
        self.kind = kind
        self.function = function

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """`pass` in place of `self.child = Child()`."""
        return ast.Pass() if ast.unparse(node.value) == f"{self.kind}()" else self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """`self.child` is the function."""
        own = isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in self.attributes
        return ast.Name(self.function, ast.Load()) if own else self.generic_visit(node)

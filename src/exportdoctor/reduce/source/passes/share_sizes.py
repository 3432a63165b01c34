"""Asks a tensor that was made early for the sizes for which later ones are asked: what led from it to them can then go
at once.

Whether the size of the first padded tensor does as well as that of the tenth is for the verdict to say.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from exportdoctor.reduce.search_protocol import Search
from exportdoctor.reduce.source.tree import all_but_constructors

_MOST = 8


def share_sizes(source: str) -> Search[str, str]:
    """The search: in each function, the last of the text first, the earliest tensor that will do."""
    for owner in reversed(range(len(all_but_constructors(ast.parse(source))))):
        offered = tuple(itertools.islice(_with_earlier_sizes(source, owner), _MOST))
        index = (yield offered) if offered else None
        if index is not None:
            source = offered[index]
    return source


def _with_earlier_sizes(source: str, owner: int) -> Iterator[str]:
    body = all_but_constructors(ast.parse(source))[owner].body
    made = [one.targets[0].id for one in body if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)]
    asked = {name for one in body for node in ast.walk(one) if (name := _asked_for_a_size(node))}
    for place, name in enumerate(made):
        later = {one for one in made[place + 1 :] if one in asked}
        if name in asked and later:
            tree = ast.parse(source)
            function = all_but_constructors(tree)[owner]
            function.body = [_AskOne(name, later).visit(one) for one in function.body]
            yield ast.unparse(tree)


def _asked_for_a_size(node: ast.AST) -> str | None:
    """The name in `name.shape[0]`."""
    match node:
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant()):
            return name
    return None


class _AskOne(ast.NodeTransformer):
    """`name.shape[0]` in place of `other.shape[0]`, for each of the others."""

    def __init__(self, name: str, others: set[str]) -> None:
        self.name, self.others = name, others

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """The size of the one tensor, where it was that of another."""
        if _asked_for_a_size(node) in self.others and isinstance(node.value, ast.Attribute):
            node.value.value = ast.Name(self.name, ast.Load())
            return node
        return self.generic_visit(node)

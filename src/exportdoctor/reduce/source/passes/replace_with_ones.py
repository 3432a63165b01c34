"""Puts tensors of ones where a model computes tensors: whatever led up to them can then go at once.

A candidate has the same statements, and differs only in the values of assignments inside functions. Whether a tensor of
ones does as well as a rotated query is for the verdict to say.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exportdoctor.reduce.search_protocol import Search
from exportdoctor.reduce.source.tree import all_but_constructors

_SHAPES = ("2, 2, 2", "2, 2", "2, 2, 2, 2")
_SYMBOLS = frozenset({"tolist", "item", "nonzero", "split", "cond", "int", "bool", "float"})
_MAKERS = frozenset({"torch.arange", "torch.zeros", "torch.ones", "torch.full", "torch.empty"})
"""What is made of sizes alone can stay: an index of ones would be no index."""
_SHORT = 25  # characters; what is shorter than a tensor of ones can stay
_MOST = 8


def replace_with_ones(source: str) -> Search[str, str]:
    """The search: in each function, the last of the text first, as many of its first assignments as can go."""
    for owner in reversed(range(len(all_but_constructors(ast.parse(source))))):
        offered = tuple(_without_beginning(source, owner))[:_MOST]
        index = (yield offered) if offered else None
        if index is not None:
            source = offered[index]
    return source


def _without_beginning(source: str, owner: int) -> Iterator[str]:
    """All assignments, all but the last one, and so on: the failing statement may be among the last."""
    body = all_but_constructors(ast.parse(source))[owner].body
    places = [number for number, node in enumerate(body) if _can_be_replaced(node)]
    for count in range(len(places), 0, -1):
        for shape in _SHAPES:
            yield _with_ones(source, owner, places[:count], shape)


def _can_be_replaced(node: ast.AST) -> bool:
    """A long computation, and none of those that make symbols or ask for their values."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or len(ast.unparse(node.value)) < _SHORT:
        return False
    if not all(isinstance(one, ast.Name) for one in _targets(node)):
        return False
    words = {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node.value)}
    if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in _MAKERS:
        return False
    return any(isinstance(one, ast.Call) for one in ast.walk(node.value)) and not words & _SYMBOLS


def _targets(node: ast.Assign) -> list[ast.expr]:
    target = node.targets[0]
    return target.elts if isinstance(target, ast.Tuple) else [target]


def _with_ones(source: str, owner: int, places: list[int], shape: str) -> str:
    tree = ast.parse(source)
    body = all_but_constructors(tree)[owner].body
    for place in places:
        node = body[place]
        assert isinstance(node, ast.Assign)
        count = f"{len(_targets(node))}, " if isinstance(node.targets[0], ast.Tuple) else ""
        node.value = ast.parse(f"torch.ones({count}{shape})", mode="eval").body
    return ast.unparse(tree)

"""Leaps that a script takes before it is reduced bit by bit: whatever led up to a value can then go at once.

A candidate has the same statements, and differs in what is assigned or asked for inside functions. Whether a tensor of
ones does as well as a rotated query, or the size of the first padded tensor as well as that of the tenth, is for the
verdict to say.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator

from exportdoctor.reduce.search_protocol import Search

_SHAPES = ("2, 2, 2", "2, 2", "2, 2, 2, 2")
_SYMBOLS = frozenset({"tolist", "item", "nonzero", "split", "cond", "int", "bool", "float"})
_MAKERS = frozenset({"torch.arange", "torch.zeros", "torch.ones", "torch.full", "torch.empty"})
"""What is made of sizes alone can stay: an index of ones would be no index."""
_SHORT = 25  # characters; what is shorter than a tensor of ones can stay
_MOST = 8


def replace_with_ones(source: str) -> Search[str, str]:
    """The search that puts tensors of ones in place of as many of a function's first assignments as can go."""
    return _by_function(source, _without_beginning)


def share_sizes(source: str) -> Search[str, str]:
    """The search that asks the earliest tensor that will do for the sizes for which later ones are asked."""
    return _by_function(source, _with_earlier_sizes)


def _by_function(source: str, offer: Callable[[str, int], Iterator[str]]) -> Search[str, str]:
    """In each function, the last of the text first, the first of what is offered that will do."""
    for owner in reversed(range(len(_functions(ast.parse(source))))):
        offered = tuple(itertools.islice(offer(source, owner), _MOST))
        index = (yield offered) if offered else None
        if index is not None:
            source = offered[index]
    return source


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """All but constructors."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "__init__"]


# --- tensors of ones


def _without_beginning(source: str, owner: int) -> Iterator[str]:
    """All assignments, all but the last one, and so on: the failing statement may be among the last."""
    body = _functions(ast.parse(source))[owner].body
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
    body = _functions(tree)[owner].body
    for place in places:
        node = body[place]
        assert isinstance(node, ast.Assign)
        count = f"{len(_targets(node))}, " if isinstance(node.targets[0], ast.Tuple) else ""
        node.value = ast.parse(f"torch.ones({count}{shape})", mode="eval").body
    return ast.unparse(tree)


# --- sizes of earlier tensors


def _with_earlier_sizes(source: str, owner: int) -> Iterator[str]:
    body = _functions(ast.parse(source))[owner].body
    made = [one.targets[0].id for one in body if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)]
    asked = {name for one in body for node in ast.walk(one) if (name := _asked_for_a_size(node))}
    for place, name in enumerate(made):
        later = {one for one in made[place + 1 :] if one in asked}
        if name in asked and later:
            tree = ast.parse(source)
            function = _functions(tree)[owner]
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

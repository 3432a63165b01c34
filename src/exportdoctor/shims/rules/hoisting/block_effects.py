"""What statements change in place, and whether they would do the same in another function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from exportdoctor.shims.rules.code.call_sites import CHANGES

_BOUND_TO_FUNCTION = (
    ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.Delete,
    ast.AsyncFor, ast.AsyncWith, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef,
)  # fmt: skip
"""Code that means something else in another function, or that a function inside may see."""

_NEW_CONTAINERS = frozenset({"list", "dict", "set"})


def is_movable(statements: Sequence[ast.stmt], is_plain: Callable[[str, int], bool]) -> bool:
    """Whether they do the same in another function, and what they change in place is their own work: lists, dicts and
    sets that they make, or what `is_plain`: a name that holds a number or a tensor whenever that line is run."""
    for one in (each for statement in statements for each in ast.walk(statement)):
        if isinstance(one, _BOUND_TO_FUNCTION) or (isinstance(one, ast.Name) and one.id == "super"):
            return False
        changed = _changed_by(one)
        if changed is not None and not _is_own_work(changed, statements, is_plain):
            return False
    return not any(map(_leaves_loop, statements))


def names_changed(statements: Sequence[ast.stmt]) -> set[str]:
    """The names of what they change in place, also by an item of it; not those that `+=` binds anew."""
    found = (_changed_by(one) for each in statements for one in ast.walk(each) if not isinstance(one, ast.AugAssign))
    return {root.id for one in found if one is not None and isinstance(root := _root(one)[0], ast.Name)}


def has_node(node: ast.AST, kinds: Any) -> bool:
    """Whether it is, or has in it, a node of one of these classes."""
    return any(isinstance(one, kinds) for one in ast.walk(node))


def _changed_by(node: ast.AST) -> ast.expr | None:
    """What a piece of code changes: what it sets an attribute or an item of, a list that it appends or adds to."""
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr=attribute)) if attribute in CHANGES:
            return of
        case ast.Attribute(value=of, ctx=ast.Store()) | ast.Subscript(value=of, ctx=ast.Store()):
            return of
        case ast.AugAssign(target=ast.Name() as of):
            return of
    return None


def _root(node: ast.expr) -> tuple[ast.expr, int]:
    """What an expression takes items of, and how deep they lie."""
    depth = 0
    while isinstance(node, ast.Subscript):
        node, depth = node.value, depth + 1
    return node, depth


def _is_own_work(changed: ast.expr, statements: Sequence[ast.stmt], is_plain: Callable[[str, int], bool]) -> bool:
    root, depth = _root(changed)
    if not isinstance(root, ast.Name):
        return False
    if is_plain(root.id, root.lineno):
        return True
    made = list(_bindings(root.id, statements))
    return bool(made) and all(value is not None and _is_new(value, depth) for value in made)


def _bindings(name: str, statements: Sequence[ast.stmt]) -> Iterator[ast.expr | None]:
    """What the name is bound to; `None` where it is bound otherwise than by an assignment to it alone."""
    alone: dict[ast.expr, ast.expr] = {}
    for one in (each for statement in statements for each in ast.walk(statement)):
        match one:
            case ast.Assign(targets=[ast.Name() as target], value=value):
                alone[target] = value
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                alone[target] = value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(
                values
            ):
                alone |= dict(zip(targets, values, strict=True))
            case ast.AugAssign(target=ast.Name() as target, value=value):
                alone[target] = ast.List([], ast.Load())  # adds to what it was bound to before
    for one in (each for statement in statements for each in ast.walk(statement)):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and one.id == name:
            yield alone.get(one)


def _is_new(value: ast.expr, depth: int) -> bool:
    """Whether it makes a list, a dict or a set, whose items are new, too, as deep as that."""
    match value:
        case ast.List(elts=items) | ast.Set(elts=items) | ast.Dict(values=items):
            return depth == 0 or all(_is_new(item, depth - 1) for item in items)
        case ast.ListComp(elt=item) | ast.SetComp(elt=item) | ast.DictComp(value=item):
            return depth == 0 or _is_new(item, depth - 1)
        case ast.Call(func=ast.Name(id=name)) if name in _NEW_CONTAINERS:
            return depth == 0
    return False


def _leaves_loop(node: ast.AST) -> bool:
    """Whether it has a `break` or `continue` of a loop around it."""
    if isinstance(node, ast.Break | ast.Continue):
        return True
    if isinstance(node, ast.For | ast.While):
        return any(map(_leaves_loop, node.orelse))
    return any(map(_leaves_loop, ast.iter_child_nodes(node)))

"""Tensors that a function makes for itself and adds to in a loop, and counters: `total += row` gives `total` a new
value.

Only where nothing else can see what is written into the tensor: no other name stands for its memory.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from exportdoctor.shims.rules.code.made_code import call_of, load
from exportdoctor.shims.rules.code.name_flow import SCAN_PREFIX, names_in_other_scopes, own_names, stored_names
from exportdoctor.shims.rules.code.name_uses import is_new_tensor, made_by
from exportdoctor.shims.rules.code.pure_code import Purity
from exportdoctor.shims.rules.code.writes import writes_of

UPDATED = f"{SCAN_PREFIX}with_update"
"""What rewritten code calls."""
_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv"}


def with_update(value: Any, other: Any, name: str) -> Any:
    """What `value` is after `value += other` and its like, with the operator of that name: a tensor of the same shape
    and dtype. Raises RuntimeError where torch refuses to write that into it."""
    import torch

    made = getattr(operator, name)(value, other)
    if not isinstance(value, torch.Tensor):
        return made
    old, new = value.dtype, made.dtype
    narrows = (new.is_complex and not old.is_complex) or (new.is_floating_point and not _has_fractions(old))
    if made.dim() != value.dim() or narrows or (old == torch.bool and new != torch.bool):
        raise RuntimeError(f"{name} in place gives another shape or dtype")
    return made if new == old else made.to(old)


def _has_fractions(dtype: Any) -> bool:
    has: bool = dtype.is_floating_point or dtype.is_complex
    return has


def write_updates_as_bindings(function: ast.FunctionDef, purity: Purity) -> None:
    """Write what is added to, or otherwise computed into, a tensor of the function's own as a new value of its name, in
    loops. `purity` judges the function's code."""
    parents = {id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    loops = [one for one in ast.walk(function) if isinstance(one, ast.For)]
    inside = names_in_other_scopes(function)
    updates = [one for loop in loops for one in ast.walk(loop) if isinstance(one, ast.AugAssign)]
    names = {one.target.id for one in updates if isinstance(one.target, ast.Name)} - inside
    own = {name for name in names if _is_own(name, function, loops, parents, purity)}
    for loop in loops:
        _Updates(own, UPDATED).visit(loop)


def write_sums_as_bindings(
    function: ast.FunctionDef, purity: Purity, is_open: Callable[[ast.expr], bool], call: str
) -> None:
    """The same, by a function that the code has the name `call` for, of names that begin as numbers and are added to in
    a branch whose condition `is_open`: `total = 0`, `if c: total += x.mean()`. There one that is a number for one value
    is a tensor for another, so that nothing can be written into it."""
    branches = [one for one in ast.walk(function) if isinstance(one, ast.If) and is_open(one.test)]
    places = [*branches, *(one for one in ast.walk(function) if isinstance(one, ast.For))]
    updates = {id(one): one for place in places for one in ast.walk(place) if isinstance(one, ast.AugAssign)}
    chosen = {one for branch in branches for one in ast.walk(branch)}
    added = {one.target.id for one in updates.values() if one in chosen and isinstance(one.target, ast.Name)}
    numbers = {name for one in ast.walk(function) for name in made_by(one, _is_number)}
    names = (added & numbers) - names_in_other_scopes(function) - _written_otherwise(function, updates.keys())
    if names:
        parents = {id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
        own = {name for name in names if _is_own(name, function, places, parents, purity, again=True)}
        for place in places:
            _Updates(own, call).visit(place)


def _written_otherwise(function: ast.FunctionDef, updates: Collection[int]) -> set[str]:
    """The names whose value is written into by something else than one of the updates, which are given by identity."""
    others = [one for one in ast.walk(function) if id(one) not in updates]
    others += [one for one in ast.walk(function) if isinstance(one, ast.AugAssign) and not _is_sum(one)]
    return {write.root.id for one in others for write in writes_of(one) if isinstance(write.root, ast.Name)}


def _is_sum(node: ast.AugAssign) -> bool:
    return isinstance(node.target, ast.Name) and type(node.op) in _OPERATORS


def write_counters_as_bindings(function: ast.FunctionDef) -> None:
    """Write `count += 1` as `count = count + 1` where the name has nothing but numbers of the code."""
    numbers = {id(name) for one in ast.walk(function) for name in made_by(one, _is_number).values()}
    updates = [one for one in ast.walk(function) if isinstance(one, ast.AugAssign) and _is_number(one.value)]
    updated = {id(one.target) for one in updates}
    others = {one.id for one in stored_names(function) if id(one) not in numbers | updated}
    given = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    bound = {name for one in ast.walk(function) if not isinstance(one, ast.Name) for name in own_names(one)}
    _Counting(others | given | bound | names_in_other_scopes(function)).visit(function)


class _Counting(ast.NodeTransformer):
    def __init__(self, others: set[str]) -> None:
        self.others = others

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not (isinstance(node.target, ast.Name) and _is_number(node.value)) or node.target.id in self.others:
            return node
        value = ast.BinOp(load(node.target.id), node.op, node.value)
        made = ast.Assign([ast.Name(node.target.id, ast.Store())], value)
        return ast.fix_missing_locations(ast.copy_location(made, node))


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _is_own(
    name: str,
    function: ast.FunctionDef,
    places: Sequence[ast.stmt],
    parents: Mapping[int, ast.AST],
    purity: Purity,
    *,
    again: bool = False,
) -> bool:
    """Whether it is bound to new tensors and numbers alone, not `again` in a loop unless that may be, and what is read
    of it within a loop, or before the last of the places, is only computed with."""
    made = (made_by(node, _is_new) for node in ast.walk(function))
    bound = {id(one[name]) for one in made if name in one}
    updated = {id(one.target) for one in ast.walk(function) if isinstance(one, ast.AugAssign)}
    if any(one.id == name and id(one) not in bound | updated for one in stored_names(function)):
        return False
    if name in (own for one in ast.walk(function) if not isinstance(one, ast.Name) for own in own_names(one)):
        return False
    last = max(one.end_lineno or 0 for one in places)
    around = [one for one in ast.walk(function) if isinstance(one, ast.For | ast.While)]
    within = {id(one) for loop in around for one in ast.walk(loop)}
    if bound & within and not again:
        return False
    names = [one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == name]
    early = [one for one in names if isinstance(one.ctx, ast.Load) and (id(one) in within or one.lineno <= last)]
    return all(_is_computed_with(one, parents, purity) for one in early)


def _is_new(node: ast.expr) -> bool:
    """Whether the expression makes a tensor of its own, or a number."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return not isinstance(value, bool)
        case ast.BinOp() | ast.UnaryOp(op=ast.USub()):
            return True
    return is_new_tensor(node)


def _is_computed_with(node: ast.AST, parents: Mapping[int, ast.AST], purity: Purity) -> bool:
    """Whether all that an expression makes of the name's value, such as views of it, ends in a computation."""
    parent = parents[id(node)]
    match parent:
        case ast.BinOp() | ast.Compare() | ast.UnaryOp(op=ast.USub()):
            return True
        case ast.Call() if not purity.of_expression(parent):
            return False  # which may keep it
        case ast.Attribute() | ast.Call() | ast.Subscript():
            return _is_computed_with(parent, parents, purity)
    return False


class _Updates(ast.NodeTransformer):
    """Writes updates of one of `names` as new values of the name, which a function gives that the code has the name
    `update` for."""

    def __init__(self, names: set[str], update: str) -> None:
        self.names, self.update = names, update

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        name = _OPERATORS.get(type(node.op))
        if name is None or not isinstance(node.target, ast.Name) or node.target.id not in self.names:
            return node
        call = call_of(self.update, load(node.target.id), node.value, ast.Constant(name))
        made = ast.Assign([ast.Name(node.target.id, ast.Store())], call)
        return ast.fix_missing_locations(ast.copy_location(made, node))

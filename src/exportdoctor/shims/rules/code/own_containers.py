"""Lists and dicts that a function makes for itself: what is stored in them becomes a new value of their name.

`states[layer] = state` becomes `states = with_item(states, layer, state)`, so that a loop which does so carries
`states` like any other name. Only where no other name can stand for the same list or dict.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from exportdoctor.shims.rules.code.made_code import call_of, load
from exportdoctor.shims.rules.code.name_flow import (
    SCAN_PREFIX,
    bound_names,
    names_in_other_scopes,
    own_names,
    read_names,
    stored_names,
)
from exportdoctor.shims.rules.code.name_uses import is_new_tensor, made_by, stacked_list

WITH_ITEM = f"{SCAN_PREFIX}with_item"
"""What rewritten code calls: the list or dict with another item."""
_VALUE = f"{SCAN_PREFIX}item"
_GOES_OVER = ("enumerate", "zip", "reversed")


def with_item(container: Any, key: Any, value: Any) -> Any:
    """A copy of a list or dict with that item. Anything else gets the item itself."""
    if type(container) not in (list, dict):
        container[key] = value
        return container
    changed = container.copy()
    changed[key] = value
    return changed


def names_written_in_place(function: ast.FunctionDef) -> set[str]:
    """The names in expressions into whose tensors the code writes, as far as it shows that: what is carried through a
    scan is another tensor afterwards. What is written into a new tensor by an index does not count, nor a counter."""
    made = {
        name for one in ast.walk(function) for name in made_by(one, lambda node: _is_new(node) or is_new_tensor(node))
    }
    numbers = {id(name) for one in ast.walk(function) for name in made_by(one, _is_number).values()}
    updated = {id(one.target) for one in ast.walk(function) if isinstance(one, ast.AugAssign)}
    others = {one.id for one in stored_names(function) if id(one) not in numbers | updated}
    counters = {one.id for one in stored_names(function)} - others
    written: list[ast.expr] = []
    for one in ast.walk(function):
        match one:
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()) if name in made:
                pass
            case ast.Subscript(value=value, ctx=ast.Store()):
                written.append(value)
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=args) if _writes_by_name(name):
                written += [value, *args[:1]]  # the first one as of `torch.relu_(x)`
            case ast.Call(args=[first, *_], keywords=how) if any(map(_asks_to_write, how)):
                written.append(first)
            case ast.AugAssign(target=ast.Name(id=name), value=ast.Constant()) if name in counters:
                pass
            case ast.AugAssign(target=value) | ast.keyword(arg="out", value=value):
                written.append(value)
    return {name for value in written for one in ast.walk(value) for name in own_names(one)}


def write_items_as_bindings(function: ast.FunctionDef) -> set[str]:
    """Write what is stored in a list or dict of the function's own as a new value of its name, in loops; returns the
    names."""
    names = own_containers(function)
    for one in ast.walk(function):
        if names and isinstance(one, ast.For):
            _Bindings(names).visit(one)
    return names


def own_containers(function: ast.FunctionDef) -> set[str]:
    """The names of lists and dicts that the function makes, and that no other name can stand for."""
    made = {name for one in ast.walk(function) for name in made_by(one, _is_new)}
    return {name for name in made - names_in_other_scopes(function) if _has_no_other_name(name, function)}


def _is_new(node: ast.expr) -> bool:
    """Whether a list or dict is made of what it is given."""
    match node:
        case ast.List() | ast.ListComp() | ast.Dict() | ast.DictComp():
            return True
        case ast.BinOp(left=ast.List(), op=ast.Mult()) | ast.BinOp(op=ast.Mult(), right=ast.List()):
            return True
        case ast.Call(func=ast.Name(id="list" | "dict")):
            return True
    return False


def _writes_by_name(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")


def _asks_to_write(given: ast.keyword) -> bool:
    return given.arg == "inplace" and not (isinstance(given.value, ast.Constant) and not given.value.value)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _has_no_other_name(name: str, function: ast.FunctionDef) -> bool:
    """Whether it is only made, asked for its items, given items, stacked, and returned."""
    allowed = set[int]()
    for one in ast.walk(function):
        allowed.update(map(id, made_by(one, _is_new).values()))
        match one:
            case ast.Assign(targets=targets):
                for target in (part for each in targets for part in _parts(each)):
                    match target:
                        case ast.Subscript(value=ast.Name() as of):
                            allowed.add(id(of))
            case ast.Subscript(value=ast.Name() as of, ctx=ast.Load()):
                allowed.add(id(of))
            case ast.Call(func=ast.Attribute(value=ast.Name() as of, attr="append"), args=[_], keywords=[]):
                allowed.add(id(of))
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name() as of], keywords=[]):
                allowed.add(id(of))
            case ast.Call() if (stacked := stacked_list(one)) is not None:
                allowed.add(id(stacked))
            case ast.Return(value=ast.expr() as value):
                allowed.update(id(of) for of in _names_returned_in(value))
            case ast.For() if not any(name in names for names in map(_items_stored_in, one.body)):
                allowed.update(id(of) for of in _gone_over(one.iter))
            case ast.comprehension(iter=over):
                allowed.update(id(of) for of in _gone_over(over))
    return all(id(one) in allowed for one in ast.walk(function) if name in own_names(one))


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    """The targets in one of an assignment."""
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _parts(one)
    else:
        yield target


def _names_returned_in(value: ast.expr) -> Iterator[ast.Name]:
    """The names that are returned as they are, also inside of a tuple, list or dict."""
    match value:
        case ast.Name():
            yield value
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            for one in parts:
                yield from _names_returned_in(one)


def _gone_over(over: ast.expr) -> Iterator[ast.Name]:
    match over:
        case ast.Name():
            yield over
        case ast.Call(func=ast.Name(id=name), args=args) if name in _GOES_OVER:
            for one in args:
                yield from _gone_over(one)


def _items_stored_in(node: ast.AST) -> set[str]:
    """The names in which a piece of code stores items, or to which it adds some."""
    found = set[str]()
    for one in ast.walk(node):
        match one:
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id=name), attr="append"):
                found.add(name)
    return found


class _Bindings(ast.NodeTransformer):
    """Writes stores of items in one of `names` as new values of the name."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_Assign(self, node: ast.Assign) -> Any:
        if len(node.targets) != 1 or {*bound_names(node)} & {*read_names(node.targets[0])}:
            return node  # which items they are may change while they are stored
        stored: list[ast.stmt] = []
        node.targets[0] = self._target(node.targets[0], stored)
        if not stored:
            return node
        return [node, *(ast.fix_missing_locations(ast.copy_location(one, node)) for one in stored)]

    def _target(self, target: ast.expr, stored: list[ast.stmt]) -> ast.expr:
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                target.elts = [self._target(one, stored) for one in parts]
            case ast.Subscript(value=ast.Name(id=name), slice=key) if name in self.names:
                value = f"{_VALUE}_{len(stored)}"
                call = call_of(WITH_ITEM, load(name), key, load(value))
                stored.append(ast.Assign([ast.Name(name, ast.Store())], call))
                return ast.copy_location(ast.Name(value, ast.Store()), target)
        return target

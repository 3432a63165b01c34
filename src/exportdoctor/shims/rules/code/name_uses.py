"""Where a function uses a list or a tensor: a loop may write it later only where nothing else sees that."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from exportdoctor.shims.rules.code.made_code import NO_VALUE
from exportdoctor.shims.rules.code.name_flow import is_name, own_names

JOINS = ("stack", "cat", "concat")
"""Functions of torch that make one tensor of a list."""
_PLACES = ("1:", ":-1", "::-1")
_FILLED = ("zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "full_like")
_NEW = ("new_zeros", "new_ones", "new_empty", "new_full", "clone")
_METADATA = frozenset({"shape", "dtype", "device", "ndim"})


@dataclass(frozen=True)
class NameUses:
    """The uses of names in a function."""

    function: ast.FunctionDef
    inside: set[str]
    """The names that functions in it mention."""

    def is_only_stacked(self, name: str, others: Callable[[ast.AST], Sequence[ast.Name]] = lambda _: ()) -> bool:
        """Whether the list is nothing but made anew, given rows at its end or its begin, reversed, and stacked or
        joined, or used as `others` says."""
        allowed = set[int]()
        for one in ast.walk(self.function):
            allowed.update(map(id, (*made_by(one, is_new_list).values(), *others(one))))
            match one:
                case ast.Call(func=ast.Attribute(value=ast.Name() as of, attr="append"), args=[_], keywords=[]):
                    allowed.add(id(of))
                case ast.Call(func=ast.Attribute(value=ast.Name() as of, attr="reverse"), args=[], keywords=[]):
                    allowed.add(id(of))
                case ast.Call() if (before := row_put_first(one)) is not None:
                    allowed.add(id(before[0]))
                case ast.Call() if (stacked := stacked_list(one)) is not None:
                    allowed.add(id(stacked))
        every = (one for one in ast.walk(self.function) if name in own_names(one))
        return name not in self.inside and all(id(one) in allowed for one in every)

    def is_only_written(self, name: str, loop: ast.For | ast.While, before: Sequence[ast.stmt]) -> bool:
        """Whether the tensor was made anew in one of the statements before the loop, and what follows uses it only to
        write rows, so that no other tensor is a view of it. `before` has also each statement around the loop."""
        allowed = {id(one) for one in ast.walk(loop)}
        for one in ast.walk(self.function):
            match one:
                case ast.Attribute(value=ast.Name() as of, attr=attribute) if attribute in _METADATA:
                    allowed.add(id(of))
                case ast.Subscript(value=ast.Name() as of, ctx=ast.Store()):
                    allowed.add(id(of))
        for one in reversed(before):
            if name in made_by(one, is_new_tensor):
                return name not in self.inside
            if any(name in own_names(each) and id(each) not in allowed for each in ast.walk(one)):
                return False
        return False


def stacked_list(node: ast.AST) -> ast.Name | None:
    """The list in `torch.stack(name, ...)`, and its like, also without its first or last row, or backwards."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=attribute), args=[of, *_]) if (
            attribute in JOINS
        ):
            match of:
                case ast.Subscript(value=ast.Name() as name, slice=places) if ast.unparse(places) in _PLACES:
                    return name
                case ast.Name():
                    return of
    return None


def row_put_first(node: ast.AST) -> tuple[ast.Name, ast.expr] | None:
    """The list and the row in `rows.insert(0, row)`."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name() as of, attr="insert"), args=[ast.Constant(value=0), row], keywords=[]
        ):
            return of, row
    return None


def made_by(node: ast.AST, is_made: Callable[[ast.expr], bool]) -> dict[str, ast.Name]:
    """The names that an assignment gives a new value of their own, each with its node."""
    return {one.id: one for one, value in bindings_of(node) if is_made(value)}


def bindings_of(node: ast.AST) -> list[tuple[ast.Name, ast.expr]]:
    """The names that an assignment binds, each with its value, also several at once."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
            pairs = list(zip(targets, values, strict=True))
        case ast.Assign(targets=[target], value=value):
            pairs = [(target, value)]
    return [(one, value) for one, value in pairs if isinstance(one, ast.Name)]


def is_new_list(node: ast.expr) -> bool:
    """`[]`, `list()`, or a list of what it names."""
    match node:
        case ast.List(elts=rows):
            return not any(isinstance(row, ast.Starred) for row in rows)
        case ast.Call(func=ast.Name(id="list"), args=[], keywords=[]):
            return True
    return False


def is_new_tensor(node: ast.expr) -> bool:
    """`torch.zeros(...)`, `x.new_zeros(...)` and their like, also converted."""
    match node:
        case ast.Call(func=ast.Attribute(value=made, attr="to" | "contiguous")):
            return is_new_tensor(made)
        case ast.Call(func=ast.Attribute(value=of, attr=attribute), keywords=how) if "out" not in [
            one.arg for one in how
        ]:
            return attribute in _NEW or (is_name(of, "torch") and attribute in _FILLED)
    return False


def identified_names(node: ast.AST) -> Iterator[str]:
    """The names in what is asked whether it is the same object as another one, but for None and the mark of a name that
    is not bound, or for its class."""
    parts: list[ast.expr] = []
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others) if {ast.Is, ast.IsNot} & set(map(type, ops)):
            parts = [] if any(map(_is_no_value, (left, *others))) else [left, *others]
        case ast.Call(func=ast.Name(id="type" | "id"), args=parts):
            pass
    return (one.id for part in parts for one in ast.walk(part) if isinstance(one, ast.Name))


def _is_no_value(node: ast.expr) -> bool:
    return is_name(node, NO_VALUE) or (isinstance(node, ast.Constant) and node.value is None)

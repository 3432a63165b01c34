"""Rewrites loops over the numbers that a tensor has as loops over all that it may have, with a condition.

`for e in best.unique().tolist(): body` becomes `for n in range(N): if found[n]: e = n; body`, where `found[n]` is
whether `best` has the number n. N is the length of what the body indexes by the number, or of what `nonzero` looked at.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exportdoctor.shims.rules.code.made_code import call_of, load
from exportdoctor.shims.rules.code.name_flow import OTHER_SCOPES, all_names, bound_names, is_name, stored_names
from exportdoctor.shims.rules.code.writes import writes_of

PREFIX = "_found_"
"""How the names begin that rewritten code binds, and no other name in it may."""
VALUES, PLACES, ELEMENT, KEPT = (f"{PREFIX}{name}" for name in ("among", "places", "number", "numbers"))
"""What rewritten code calls: which numbers a tensor has, at which places one is not zero, and a number as a tensor; and
the name of a tensor that is kept."""
_MOST_ORDERED = 8
"""Python keeps whole numbers below this in their order in a set: its table has at least as many entries."""
_FLATTENS = ("flatten()", "ravel()", "view(-1)", "reshape(-1)")
_COLUMNS = ("squeeze(-1)", "squeeze(1)", "squeeze(dim=-1)", "squeeze(dim=1)", *_FLATTENS)


@dataclass(frozen=True)
class Found:
    """What a loop goes over: the numbers in `tensor`, or with `are_places` the places where it is not zero.

    `dims` are the dimensions of the tensor that Python's loop takes apart; `are_plain` says that it goes over numbers
    of Python instead. `most` is the largest N for which the order is known.
    """

    tensor: ast.expr
    are_places: bool = False
    dims: int = 1
    are_plain: bool = False
    is_set: bool = False
    most: int | None = None


def found_in(over: ast.expr) -> Found | None:
    """What `over` goes over, each number once and in ascending order; None for anything else."""
    match over:
        case ast.Call(func=ast.Name(id="sorted"), args=[inner], keywords=[]):
            found = found_in(inner)
            return replace(found, most=None) if found is not None and found.are_plain else None
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner], keywords=[]):
            return found_in(inner)
        case ast.Call(func=ast.Name(id="set" | "frozenset"), args=[inner], keywords=[]):
            return _set_of(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="tolist"), args=[], keywords=[]):
            found = found_in(_without_moves(inner))
            return replace(found, are_plain=True) if found is not None and found.dims == 1 else None
        case ast.Call(func=ast.Attribute(value=inner, attr="detach"), args=[], keywords=[]):
            return found_in(inner)
    tensor = _only_argument(over, "unique")
    if tensor is not None:
        return Found(tensor)
    return _places_in(over)


def _set_of(inner: ast.expr) -> Found | None:
    """`set(best.flatten().tolist())`, and `set` of what has each number once already."""
    found = found_in(inner)
    if found is not None:
        return replace(found, most=_MOST_ORDERED) if found.are_plain else None
    match inner:
        case ast.Call(func=ast.Attribute(value=tensor, attr="tolist"), args=[], keywords=[]):
            tensor = _without_moves(tensor)
            if _ends_with(tensor, _FLATTENS):
                return Found(tensor, are_plain=True, is_set=True, most=_MOST_ORDERED)
    return None


def _places_in(over: ast.expr) -> Found | None:
    tensor = _only_argument(over, "nonzero", as_tuple="False") or _only_argument(over, "argwhere")
    if tensor is not None:
        return Found(tensor, are_places=True, dims=2)
    match over:
        case ast.Subscript(value=inner, slice=ast.Constant(value=0)):
            tensor = _only_argument(inner, "nonzero", as_tuple="True", needed=True) or _only_argument(
                inner, "where", method=False
            )
            return Found(tensor, are_places=True) if tensor is not None else None
        case ast.Subscript(value=inner) if ast.unparse(over.slice) in ("(:, 0)", ":, 0"):
            return _column_of(inner)
        case ast.Call(func=ast.Attribute(value=inner)) if _ends_with(over, _COLUMNS):
            return _column_of(inner)
    return None


def _column_of(inner: ast.expr) -> Found | None:
    found = found_in(inner)
    return replace(found, dims=1) if found is not None and found.dims == 2 else None


def _without_moves(tensor: ast.expr) -> ast.expr:
    """The tensor whose numbers Python reads: where it is does not matter for these."""
    match tensor:
        case ast.Call(func=ast.Attribute(value=inner, attr="cpu" | "detach"), args=[], keywords=[]):
            return _without_moves(inner)
    return tensor


def _ends_with(tensor: ast.expr, calls: Sequence[str]) -> bool:
    match tensor:
        case ast.Call(func=ast.Attribute(value=inner)):
            return ast.unparse(tensor).removeprefix(f"{ast.unparse(inner)}.") in calls
    return False


def _only_argument(
    call: ast.expr, name: str, *, as_tuple: str = "", needed: bool = False, method: bool = True
) -> ast.expr | None:
    """The tensor of `torch.name(tensor)` or `tensor.name()`; other arguments than the defaults are refused."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=called), args=[tensor]) if called == name:
            pass
        case ast.Call(func=ast.Attribute(value=tensor, attr=called), args=[]) if called == name and method:
            if is_name(tensor, "torch"):
                return None
        case _:
            return None
    given = {one.arg: ast.unparse(one.value) for one in call.keywords}
    wanted = {"as_tuple": as_tuple} if as_tuple else {"sorted": "True"} if name == "unique" else {}
    is_default = all(wanted.get(key or "") == value for key, value in given.items())
    return tensor if is_default and (not needed or given) else None


@dataclass
class FoundLoops:
    """Rewrites the loops of one function; `count` says how many, `refused` why others stay."""

    count: int = 0
    refused: list[str] = field(default_factory=list)

    def of_function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """The function with its loops rewritten, in a copy."""
        self._function = copy.deepcopy(node)
        self._before: dict[int, list[ast.stmt]] = {}
        self._block(self._function)
        _Inserted(self._before).visit(self._function)
        return ast.fix_missing_locations(self._function)

    def _block(self, node: ast.AST) -> None:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            made: list[ast.stmt] = []
            for one in block:
                if not isinstance(one, OTHER_SCOPES):
                    self._block(one)
                made += (self._loop(one) if isinstance(one, ast.For) else None) or [one]
            setattr(node, name, made)
        for handler in getattr(node, "handlers", []):
            self._block(handler)

    def _loop(self, loop: ast.For) -> list[ast.stmt] | None:
        """The statements in place of the loop; None where it stays."""
        named = self._find_binding(loop) if isinstance(loop.iter, ast.Name) else None
        found = found_in(named.value if named is not None else loop.iter)
        if found is None:
            return None
        body = _without_continue(loop.body)
        why = self._why_not(loop, body, named, found)
        target = loop.target
        if why or body is None or not isinstance(target, ast.Name):
            self.refused.append(f"line {loop.lineno}: {why}")
            return None
        lengths = [] if found.are_places else _lengths(target.id, body, found.are_plain)
        if not lengths and not found.are_places:
            self.refused.append(f"line {loop.lineno}: nothing says how many numbers there may be, as an index does")
            return None
        self.count += 1
        return self._statements(loop, target.id, body, named, found, lengths)

    def _why_not(self, loop: ast.For, body: object, named: ast.Assign | None, found: Found) -> str:
        if not isinstance(loop.target, ast.Name) or loop.orelse:
            return "the loop has several names, or an `else`"
        if body is None:
            return "the loop is left before its end"
        if self._is_read_elsewhere(loop.target.id, loop):
            return f"`{loop.target.id}` is read behind the loop"
        if late := self._bound_here_alone(loop):
            return f"`{late}` is bound in the loop alone, and read elsewhere"
        if named is not None and found.are_plain and self._reads(loop.iter) > 1:
            return f"the list `{ast.unparse(loop.iter)}` is read elsewhere, too"
        written = (write.root for one in ast.walk(self._function) for write in writes_of(one))
        if named is not None and any(ast.unparse(root) == ast.unparse(loop.iter) for root in written):
            return f"`{ast.unparse(loop.iter)}` is written into"
        return ""

    def _find_binding(self, loop: ast.For) -> ast.Assign | None:
        """The only statement that binds what the loop goes over, before it."""
        assert isinstance(loop.iter, ast.Name)
        name, every = loop.iter.id, [*ast.walk(self._function)]
        stored = [one for one in every if isinstance(one, ast.Name) and one.id == name and _is_bound(one)]
        given = any(isinstance(one, ast.arg) and one.arg == name for one in every)
        inside = any(name in all_names(one) for one in every if isinstance(one, OTHER_SCOPES) and one != self._function)
        for one in every:
            match one:
                case ast.Assign(targets=[ast.Name(id=bound) as target]) if bound == name and stored == [target]:
                    return one if one.lineno < loop.lineno and not given and not inside else None
        return None

    def _reads(self, over: ast.expr) -> int:
        name = ast.unparse(over)
        return sum(is_name(one, name) and not _is_bound(one) for one in ast.walk(self._function)
                   if isinstance(one, ast.Name))  # fmt: skip

    def _is_read_elsewhere(self, name: str, loop: ast.For) -> bool:
        own: set[int] = set()
        for one in ast.walk(self._function):
            if isinstance(one, ast.For) and name in bound_names(one.target):
                own |= {id(part) for each in one.body for part in ast.walk(each)}
            if isinstance(one, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) and any(
                name in all_names(each.target) for each in one.generators
            ):
                own |= {id(part) for part in ast.walk(one)}
        return any(
            isinstance(one, ast.Name) and one.id == name and not _is_bound(one) and id(one) not in own
            for one in ast.walk(self._function)
        )

    def _bound_here_alone(self, loop: ast.For) -> str:
        """A name that the loop binds, nothing before it does, and something else reads."""
        inside = {id(one) for one in ast.walk(loop)}
        others = [one for one in ast.walk(self._function) if id(one) not in inside]
        before = {one.arg for one in others if isinstance(one, ast.arg)}
        names = [one for one in others if isinstance(one, ast.Name)]
        before |= {one.id for one in names if _is_bound(one) and one.lineno < loop.lineno}
        read = {one.id for one in names if not _is_bound(one)}
        bound = {one.id for part in loop.body for one in stored_names(part)}
        return next(iter(sorted((bound & read) - before)), "")

    def _statements(
        self,
        loop: ast.For,
        target: str,
        body: list[ast.stmt],
        named: ast.Assign | None,
        found: Found,
        lengths: list[ast.expr],
    ) -> list[ast.stmt]:
        number, holds, kept = (f"{PREFIX}{name}_{self.count}" for name in ("n", "holds", "in"))
        before = ast.Assign([ast.Name(kept, ast.Store())], found.tensor)
        if named is None:
            made: list[ast.stmt] = [before]
        elif found.are_plain:  # the list is read here alone
            made = [ast.Assign([ast.Name(kept, ast.Store())], load(ast.unparse(loop.iter)))]
            named.value = ast.copy_location(call_of(KEPT, found.tensor, ast.Constant(found.are_places)), named.value)
        else:  # the tensor that the loop goes over is there, and may have been written into
            made = []
            self._before[id(named)] = [ast.copy_location(before, named)]
            named.value = _Replaced(found.tensor, load(kept)).visit(named.value)
        over: ast.expr = load(ast.unparse(loop.iter)) if named is not None and not found.are_plain else load(kept)
        if found.are_places:
            looked_at = [load(kept)] if named is not None and not found.are_plain else []
            value = call_of(PLACES, over, *looked_at)
        else:
            parts = ast.Tuple(lengths, ast.Load())
            value = call_of(VALUES, over, parts, ast.Constant(found.most))
        made.append(ast.Assign([ast.Name(holds, ast.Store())], value))
        element: ast.expr = load(number)
        if not found.are_plain:
            element = call_of(ELEMENT, load(number), over, ast.Constant(found.dims - 1), ast.Constant(found.are_places))
        bind = ast.Assign([ast.Name(target, ast.Store())], element)
        body = [_AsNumbers(number, _number_forms(target, _every(body))).visit(one) for one in body]
        test = ast.Subscript(load(holds), load(number), ast.Load())
        branch = ast.If(test, [bind, *body], [])
        steps = call_of("range", call_of("len", load(holds)))
        made.append(ast.For(ast.Name(number, ast.Store()), steps, [branch], [], None))
        for one in made:
            ast.copy_location(one, loop)
        for part in (branch, test, bind):
            ast.copy_location(part, loop)
        return made


class _AsNumbers(ast.NodeTransformer):
    """What Python reads from the tensor of the loop's number is the number, also where a condition compares it."""

    def __init__(self, number: str, is_number: Callable[[ast.expr], bool]) -> None:
        self.number, self.is_number = number, is_number

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Attribute(attr="item")) | ast.Call(func=ast.Name(id="int")) if self.is_number(node):
                return ast.copy_location(load(self.number), node)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.test = self._condition(node.test)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.test = self._condition(node.test)
        return node

    def _condition(self, test: ast.expr) -> ast.expr:
        match test:
            case ast.BoolOp(values=values):
                test.values = [self._condition(one) for one in values]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                test.operand = self._condition(operand)
            case ast.Compare(left=left, comparators=others):
                test.left, *test.comparators = map(self._as_number, (left, *others))
        return test

    def _as_number(self, node: ast.expr) -> ast.expr:
        return ast.copy_location(load(self.number), node) if self.is_number(node) else node


class _Replaced(ast.NodeTransformer):
    """One node by another, by its identity."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


class _Inserted(ast.NodeTransformer):
    """Statements before others, by the identity of these."""

    def __init__(self, before: dict[int, list[ast.stmt]]) -> None:
        self.before = before

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        return [*self.before.get(id(node), []), node]


def _is_bound(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def _without_continue(body: Sequence[ast.stmt]) -> list[ast.stmt] | None:
    """The body, what follows `if condition: continue` under the other condition; None where it is left otherwise."""
    made: list[ast.stmt] = []
    for place, one in enumerate(body):
        match one:
            case ast.Continue():
                return made or [ast.copy_location(ast.Pass(), one)]
            case ast.If(test=test, body=[*first, ast.Continue()], orelse=[]):
                rest = _without_continue(body[place + 1 :])
                if rest is None or any(map(_leaves, first)):
                    return None
                branch = ast.If(test, first or [ast.copy_location(ast.Pass(), one)], rest)
                return [*made, ast.copy_location(branch, one)]
        if _leaves(one):
            return None
        made.append(one)
    return made


def _leaves(node: ast.AST, *, inside: bool = False) -> bool:
    """Whether a statement may leave the loop around it, or a step of that."""
    if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom | ast.Await | ast.Global | ast.Nonlocal | ast.Delete):
        return True
    if isinstance(node, ast.Break | ast.Continue):
        return not inside
    if isinstance(node, OTHER_SCOPES):
        return False
    again = inside or isinstance(node, ast.For | ast.While)
    return any(_leaves(child, inside=again) for child in ast.iter_child_nodes(node))


# --- how many numbers there may be


def _lengths(target: str, body: Sequence[ast.stmt], are_plain: bool) -> list[ast.expr]:
    """What the body indexes by the number: attributes of `self`, else values that it does not bind."""
    bound = {name for one in body for name in bound_names(one)}
    every = _every(body)
    is_number = _number_forms(target, every)
    holders = {
        ast.unparse(one.value): one.value
        for one in every
        if isinstance(one, ast.Subscript)
        and is_number(one.slice.elts[0] if isinstance(one.slice, ast.Tuple) and one.slice.elts else one.slice)
        and _is_plain_holder(one.value)
        and not bound & {*all_names(one.value)}
        and target not in all_names(one.value)
    }
    own = [holder for text, holder in holders.items() if text.startswith("self.")]
    return [copy.deepcopy(one) for one in own or holders.values()]


def _every(body: Sequence[ast.stmt]) -> list[ast.AST]:
    return [one for part in body for one in ast.walk(part)]


def _is_plain_holder(node: ast.expr) -> bool:
    """A name, or an attribute of one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _number_forms(target: str, every: Sequence[ast.AST]) -> Callable[[ast.expr], bool]:
    """Whether an expression is the loop's number, as an index: also by a name that is bound to it alone."""
    names = {target}

    def is_number(node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name in names
            case ast.Call(func=ast.Attribute(value=inner, attr="item" | "squeeze"), keywords=[]):
                return is_number(inner)
            case ast.Call(func=ast.Name(id="int"), args=[inner], keywords=[]):
                return is_number(inner)
            case ast.Subscript(value=inner, slice=ast.Constant(value=0)):
                return is_number(inner)
        return False

    bindings = {name: list(_values_of(name, every)) for name in {name for one in every for name in bound_names(one)}}
    for name, values in bindings.items():
        if name != target and values and all(value is not None and is_number(value) for value in values):
            names.add(name)
    if any(value is None or not is_number(value) for value in bindings.get(target, [])):
        names.clear()
    return is_number


def _values_of(name: str, every: Sequence[ast.AST]) -> Iterator[ast.expr | None]:
    """What a name is bound to, each time; None where that does not show."""
    shown: set[int] = set()
    for one in every:
        match one:
            case ast.Assign(targets=[ast.Name(id=bound) as stored], value=value) if bound == name:
                shown.add(id(stored))
                yield value
    yield from (None for one in every if isinstance(one, ast.Name) and one.id == name and _is_bound(one)
                and id(one) not in shown)  # fmt: skip

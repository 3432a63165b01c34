"""Arms of branches that call a method of the module which does more than compute: its statements stand in its place.

`if c: self.start(x)` becomes `if c: _inlined_1_x = x; self.mean.copy_(_inlined_1_x.mean(0))`: what an arm writes into
has to show in it. That is the same call as long as the method is one of the class, which no module has another one of,
and whose names mean the same in the function that calls it. A call within an expression is taken out of it
(`call_order.py`), and a method that returns early returns at its end (`early_returns.py`).
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar, cast

from exportdoctor.shims.rules.branches.call_order import CallOrder, CannotTakeOut
from exportdoctor.shims.rules.branches.early_returns import return_behind_arms, with_result_named
from exportdoctor.shims.rules.code.code_swap import class_around, definition_of, has_private_names
from exportdoctor.shims.rules.code.made_code import call_of, load
from exportdoctor.shims.rules.code.name_flow import READS_ALL_NAMES, all_names
from exportdoctor.shims.rules.code.pure_code import Purity
from exportdoctor.shims.rules.code.writes import WITHOUT_GRADIENTS, writes_of

_INLINED = "_inlined"
"""How the names begin that are those of a method whose statements stand elsewhere."""
_REFUSED = (
    ast.Return, ast.Raise, ast.Try, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Global,
    ast.Nonlocal, ast.Delete, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await, ast.Import, ast.ImportFrom, ast.Match,
    ast.AsyncFor, ast.AsyncWith, ast.While,
)  # fmt: skip
_OTHER_NAMES = READS_ALL_NAMES | {"super", "__class__"}
_PLAIN = (type(None), bool, int, float, str)
"""The classes of defaults that are the same in each call, and can be written."""
_ACCESS = "__getattribute__"
_Node = TypeVar("_Node", bound=ast.AST)
_MOST = 3
"""How deep methods may call each other."""


def inline_calls(function: ast.FunctionDef, is_open: Callable[[ast.expr], bool], purity: Purity) -> None:
    """Rewrites, in place, the arms of branches whose condition `is_open`, and of those inside of them. There a write
    through `.data` of a tensor that `self` holds, which autograd does not see, becomes one without gradients."""
    receiver = function.args.args[0].arg if function.args.args else ""
    stored = {one.id for one in ast.walk(function) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    is_method = bool(purity.instances) and purity.function.__code__.co_varnames[:1] == (receiver,)
    if is_method and receiver not in stored and not any(name.startswith(_INLINED) for name in all_names(function)):
        rewrite = _Inlining(receiver, is_open, purity)
        function.body = rewrite.of_block(function.body, inside=False, callers=(purity.function,))
        ast.fix_missing_locations(function)


def return_behind_writes(function: ast.FunctionDef, is_open: Callable[[ast.expr], bool], purity: Purity) -> None:
    """Rewrites, in place, a function that returns early by an open condition and may write into something, in its arms
    or by a method that it calls: it returns behind them."""

    def writes(node: ast.AST) -> bool:
        stores = isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
        return stores or any(writes_of(node)) or (isinstance(node, ast.Call) and not purity.of_expression(node))

    return_behind_arms(function, is_open, writes, lambda one: is_no_grad(one, purity))


class _Inlining:
    def __init__(self, receiver: str, is_open: Callable[[ast.expr], bool], purity: Purity) -> None:
        self.receiver, self.is_open, self.purity, self.count = receiver, is_open, purity, 0
        code = purity.function.__code__
        self.local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}

    def of_block(
        self, statements: Sequence[ast.stmt], *, inside: bool, callers: tuple[FunctionType, ...]
    ) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for one in statements:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                made.append(one)
                continue
            chosen = inside or (isinstance(one, ast.If) and self.is_open(one.test))
            for name in ("body", "orelse", "finalbody"):
                if isinstance(block := getattr(one, name, None), list):
                    setattr(one, name, self.of_block(block, inside=chosen, callers=callers))
            made += self._of_statement(one, callers) if inside else [one]
        return made

    def _of_statement(self, node: ast.stmt, callers: tuple[FunctionType, ...]) -> list[ast.stmt]:
        if isinstance(node, ast.With) and is_no_grad(node, self.purity):
            node.items[0].context_expr = ast.copy_location(call_of(WITHOUT_GRADIENTS), node.items[0].context_expr)
            return [node]
        part = "test" if isinstance(node, ast.If) else "value"
        if isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.If):
            before, value = self._take_out(getattr(node, part), callers, node)
            if before and value is not None:
                setattr(node, part, _place(value, node))
                left = node if isinstance(node, ast.If) else _place(self._without_data(self._drop_value(node)), node)
                return [*(_place(one, node) for one in before), left]
        return [self._without_data(node)]

    def _take_out(
        self, value: ast.expr | None, callers: tuple[FunctionType, ...], of: ast.stmt | None = None
    ) -> tuple[list[ast.stmt], ast.expr | None]:
        """The statements in place of what an expression calls, and what is left of it; none where that has to stay. It
        may be that `of` a statement."""
        if value is None or not any(self._may_be_taken(one) for one in ast.walk(value)):
            return [], value
        order = CallOrder(self.purity, self._may_be_taken, lambda call: self._inline(call, callers), self._new_name)
        try:
            if isinstance(of, ast.AugAssign):  # its target is read before the value is known
                order.keep_in_place(of.target)
            return order.before, order.take_out(copy.deepcopy(value))
        except CannotTakeOut:
            return [], value

    def _may_be_taken(self, node: ast.AST) -> bool:
        """Whether it is the call of a method that does more than compute."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if name == self.receiver:
                return self._method(attr) is not None and not self.purity.of_expression(node)
        return False

    def _new_name(self) -> str:
        self.count += 1
        return f"{_INLINED}_{self.count}"

    def _drop_value(self, node: ast.stmt) -> ast.stmt:
        """A statement of a value that a method gives, where nobody may use that."""
        if not isinstance(node, ast.Expr) or any(writes_of(node)):
            return node
        return ast.Assign([ast.Name(self._new_name(), ast.Store())], node.value)

    def _without_data(self, node: ast.stmt) -> ast.stmt:
        """`self.mean.data.copy_(y)` as a write into `self.mean` under `no_grad`: the values are the same, and in
        neither case has autograd a part in it."""
        roots = [one.root for one in writes_of(node)] if isinstance(node, ast.Expr | ast.Assign) else []
        through = {ast.unparse(one) for one in roots if self._is_data(one)}
        if not roots or len(through) != 1 or not all(map(self._is_data, roots)):
            return node
        changed = _Plain(*through).visit(node)
        made = ast.With([ast.withitem(call_of(WITHOUT_GRADIENTS), None)], [changed], None)
        return _place(made, node)

    def _is_data(self, node: ast.expr) -> bool:
        """Whether it is `.data` of a tensor that each of the modules holds."""
        import torch

        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr=attr) as of, attr="data"):
                if name != self.receiver or not self.purity.is_plain_attribute(of):
                    return False
                held = [getattr(one, attr) for one in self.purity.instances]
                plain: Any = torch.Tensor
                return all(isinstance(one, plain) and type(one).data is plain.data for one in held)
        return False

    # --- methods

    def _inline(self, call: ast.Call, callers: tuple[FunctionType, ...]) -> tuple[list[ast.stmt], ast.expr] | None:
        """The statements of the method that is called, and what it gives; None where it has to stay a call."""
        match call.func:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name == self.receiver:
                method = self._method(attr)
            case _:
                return None
        if method is None or method in callers or len(callers) > _MOST or self.purity.of_expression(call):
            return None
        plain, without_gradients = _inside_no_grad(method)
        node = definition_of(plain) if plain is not None else None
        if plain is None or node is None or not self._with_return_last(node) or not self._may_stand_here(plain, node):
            return None
        bound = _bind(call, node, plain)
        if bound is None:
            return None
        self.count += 1
        prefix = f"{_INLINED}_{self.count}"
        own = [*node.args.posonlyargs, *node.args.args][0].arg
        changed = {name: f"{prefix}_{name}" for name in _local_names(node)} | {own: self.receiver}
        body, value = _split(node.body, prefix)
        renaming = _Renamed(changed)
        body, value = [renaming.visit(one) for one in body], cast("ast.expr", renaming.visit(value))
        if without_gradients:
            body, value = _under_no_grad(body, value, prefix)
        arguments = [_assign(changed[name], given) for name, given in bound.items()]
        inside = (*callers, method)
        statements = [*arguments, *self.of_block(body, inside=True, callers=inside)]
        more, left = self._take_out(value, inside)
        return [*statements, *more], cast("ast.expr", left)

    def _with_return_last(self, node: ast.FunctionDef) -> bool:
        """Rewrites a method that returns early, so that it returns at its end alone; whether it does."""
        parts = [one for part in node.body for one in ast.walk(part)]
        if all(id(one) in _last_returns(node) for one in parts if isinstance(one, ast.Return)):
            return True
        body = with_result_named(node.body, lambda one: is_no_grad(one, self.purity))
        node.body = body or node.body
        return body is not None

    def _method(self, name: str) -> FunctionType | None:
        """The method of that name, where it is one and the same for all modules."""
        found = [inspect.getattr_static(type(one), name, None) for one in self.purity.instances]
        plain = all(
            name not in vars(one) and getattr(type(one), _ACCESS) is getattr(object, _ACCESS)
            for one in self.purity.instances
        )
        first = found[0]
        same = isinstance(first, FunctionType) and all(one is first for one in found)
        return cast("FunctionType", first) if plain and same else None

    def _may_stand_here(self, method: FunctionType, node: ast.FunctionDef) -> bool:
        """Whether its statements do the same in the function that calls it."""
        caller, given, local = self.purity.function, node.args, set(_local_names(node))
        first = [one.arg for one in (*given.posonlyargs, *given.args)][:1]
        parts = [one for part in node.body for one in ast.walk(part)]
        names = [one for one in parts if isinstance(one, ast.Name)]
        read = {one.id for one in names} - local - {*first}
        returned = _last_returns(node)
        return (
            bool(first)
            and not any(one.id in first and not isinstance(one.ctx, ast.Load) for one in names)
            and given.vararg is None
            and given.kwarg is None
            and not method.__code__.co_freevars
            and method.__globals__ is caller.__globals__
            and not any(isinstance(one, _REFUSED) for one in parts if id(one) not in returned)
            and all(is_no_grad(one, self.purity) for one in parts if isinstance(one, ast.With))
            and not read & (_OTHER_NAMES | self.local)
            and (not has_private_names(node) or class_around(method.__code__) == class_around(caller.__code__))
        )


def _last_returns(node: ast.FunctionDef) -> set[int]:
    """The `return` at the end of a function, or of a `with` there, by identity."""
    last = node.body[-1]
    ends = [last, *last.body[-1:]] if isinstance(last, ast.With) else [last]
    return {id(one) for one in ends if isinstance(one, ast.Return)}


def is_no_grad(node: ast.With, purity: Purity) -> bool:
    """Whether it is `with torch.no_grad()`."""
    import torch

    match node.items:
        case [ast.withitem(context_expr=ast.Call(func=made, args=[], keywords=[]), optional_vars=None)]:
            return purity.resolve(made) is torch.no_grad
    return False


def _local_names(node: ast.FunctionDef) -> list[str]:
    """The names that are the method's own, but for its first parameter."""
    given = node.args
    _, *rest = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    every = (one for part in node.body for one in ast.walk(part))
    return [*rest, *(one.id for one in every if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))]


def _inside_no_grad(method: FunctionType) -> tuple[FunctionType, bool]:
    """The method that `torch.no_grad` decorates, and whether it does; else the method itself."""
    import torch

    if hasattr(method, "__wrapped__") and method.__code__ is torch.no_grad()(lambda: None).__code__:
        around = dict(zip(method.__code__.co_freevars, method.__closure__ or (), strict=True))
        made, plain = (around[name].cell_contents if name in around else None for name in ("ctx_factory", "func"))
        if type(getattr(made, "__self__", None)) is torch.no_grad and isinstance(plain, FunctionType):
            return plain, True
    return method, False


def _bind(call: ast.Call, node: ast.FunctionDef, method: FunctionType) -> dict[str, ast.expr] | None:
    """What each parameter but the first is given, in the order in which Python computes it; None where the call does
    not show it."""
    given, keywords = node.args, [(one.arg, one.value) for one in call.keywords]
    places = [one.arg for one in (*given.posonlyargs, *given.args)]
    named = {one.arg for one in (*given.args, *given.kwonlyargs)} - {*places[: len(call.args) + 1]}
    if any(isinstance(one, ast.Starred) for one in call.args) or len(call.args) >= len(places):
        return None
    if any(name not in named for name, _ in keywords):
        return None
    bound = dict(zip(places[1:], call.args, strict=False)) | {str(name): value for name, value in keywords}
    held = method.__defaults__ or ()
    defaults = dict(zip(places[len(places) - len(held) :], held, strict=True)) | (method.__kwdefaults__ or {})
    for name in (*places[1:], *(one.arg for one in given.kwonlyargs)):
        if name not in bound:
            if name not in defaults or type(defaults[name]) not in _PLAIN:
                return None
            bound[name] = ast.Constant(defaults[name])
    return bound


def _split(body: list[ast.stmt], result: str) -> tuple[list[ast.stmt], ast.expr]:
    """The statements before the `return` at the end, and what it gives; that of a `with` has the name `result`."""
    *before, last = body
    match last:
        case ast.Return(value=value):
            return before, value or ast.Constant(None)
        case ast.With(body=[*inner, ast.Return(value=value)]):
            last.body = [*inner, _assign(result, value or ast.Constant(None))]
            return body, load(result)
    return body, ast.Constant(None)


def _under_no_grad(body: list[ast.stmt], value: ast.expr, result: str) -> tuple[list[ast.stmt], ast.expr]:
    inner = [*body, _assign(result, value)]
    return [ast.With([ast.withitem(call_of(WITHOUT_GRADIENTS), None)], inner, None)], load(result)


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _place(node: _Node, at: ast.stmt) -> _Node:
    """The statement, or a part of one, which stands where another one stood."""
    for one in ast.walk(node):
        ast.copy_location(one, at)
    return node


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)


class _Plain(ast.NodeTransformer):
    """Takes the tensor itself in place of what the code calls `text`, its `.data`."""

    def __init__(self, text: str) -> None:
        self.text = text

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if ast.unparse(node) == self.text:
            return node.value
        return self.generic_visit(node)

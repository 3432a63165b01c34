"""Loops that assign to attributes of `self`, and that a tensor's value ends: within the loop these are local names.

`self.err = ...`, `if self.err < self.tol: break` becomes `err = ...`, `if err < self.tol: break`, and behind the loop
`self.err = err`, where each step assigns the attribute before it reads it or leaves the loop, and nothing else that the
loop runs could see it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from exportdoctor.core.failure.frames import is_defined_in_torch
from exportdoctor.shims.rules.branches.arm_attributes import HELD, AttributesAsNames, is_without_code
from exportdoctor.shims.rules.branches.loop_exits import exits_in
from exportdoctor.shims.rules.code.made_code import load
from exportdoctor.shims.rules.code.name_flow import OTHER_SCOPES, all_names
from exportdoctor.shims.rules.code.pure_code import Purity

_READ_BY_NAME = frozenset({
    "__dict__", "__getattribute__", "attrgetter", "delattr", "dir", "eval", "exec", "getattr", "hasattr", "locals",
    "setattr", "vars",
})  # fmt: skip
_SCOPES = (*OTHER_SCOPES, ast.GeneratorExp)


def assign_behind_loops(function: ast.FunctionDef, is_open: Callable[[ast.expr], bool], purity: Purity) -> None:
    """Rewrites, in place, the loops that are left where a condition `is_open`."""
    receiver = function.args.args[0].arg if function.args.args else ""
    inside = [one for statement in function.body for one in ast.walk(statement)]
    scopes = [one for one in inside if isinstance(one, _SCOPES)]
    own = [*_own_in(function.body, receiver)]
    bare = sum(isinstance(one, ast.Name) and one.id == receiver for one in inside) - len(own)
    if not purity.instances or bare or any(receiver in all_names(one) for one in scopes):
        return
    if not any(isinstance(one, ast.Yield | ast.YieldFrom) for one in inside):
        rewrite = _LoopAssignments(receiver, is_open, purity, {*all_names(function)}, own)
        function.body = rewrite.of_block(function.body)
        ast.fix_missing_locations(function)


class _LoopAssignments:
    def __init__(
        self,
        receiver: str,
        is_open: Callable[[ast.expr], bool],
        purity: Purity,
        names: set[str],
        own: Sequence[ast.Attribute],
    ) -> None:
        self.receiver, self.is_open, self.purity, self.names, self.own = receiver, is_open, purity, names, own

    def of_block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements with those behind their loops."""
        made: list[ast.stmt] = []
        for one in statements:
            behind = self._name_attributes(one) if isinstance(one, ast.For) else []
            if isinstance(one, ast.If):  # around others a loop runs again, or an exception is caught
                one.body, one.orelse = self.of_block(one.body), self.of_block(one.orelse)
            made += [one, *behind]
        return made

    def _name_attributes(self, loop: ast.For) -> list[ast.stmt]:
        """The statements behind the loop, in which attributes have become names; none where it stays as it is."""
        stored = (one for one in _own_in(loop.body, self.receiver) if not isinstance(one.ctx, ast.Load))
        attributes = [*dict.fromkeys(one.attr for one in stored)]
        names = {attr: f"{HELD}_{attr}" for attr in attributes}
        if not attributes or not self._is_left(loop) or self.names & {*names.values()}:
            return []
        if not _is_plain(loop.iter) or not all(self._may_be_named(loop, attr) for attr in attributes):
            return []
        swap = AttributesAsNames(self.receiver, names)
        body = [ast.fix_missing_locations(swap.visit(one)) for one in copy.deepcopy(loop.body)]
        if not self.purity.inside(loop).of_statements(body):
            return []
        loop.body = body
        return [ast.copy_location(self._assign(attr, name), loop) for attr, name in names.items()]

    def _assign(self, attr: str, name: str) -> ast.stmt:
        """A loop without any step binds no name, and assigns nothing."""
        kept = ast.Attribute(load(self.receiver), attr, ast.Store())
        unbound = ast.ExceptHandler(load("NameError"), None, [ast.Pass()])
        return ast.Try([ast.Expr(load(name))], [unbound], [ast.Assign([kept], load(name))], [])

    def _is_left(self, loop: ast.For) -> bool:
        exits = {type(one) for part in loop.body for one in exits_in(part)}
        branches = [one for part in loop.body for one in ast.walk(part) if isinstance(one, ast.If)]
        asked = any(self.is_open(one.test) for one in branches if any(exits_in(one)))
        return asked and not loop.orelse and ast.Break in exits and exits <= {ast.Break, ast.Continue}

    def _may_be_named(self, loop: ast.For, attr: str) -> bool:
        """Whether each step assigns it a tensor before it reads it or ends, and nothing but the loop's code sees it."""
        assigned = [one for part in loop.body for one in ast.walk(part) if self._assigns(one, attr)]
        stored = [one for one in _own_in(loop.body, self.receiver) if one.attr == attr and not _is_read(one)]
        every = [one for one in self.own if _is_own(one, self.receiver, attr)]
        elsewhere = sum(not _is_read(one) for one in every) > len(stored)  # its name may have what it was before
        if elsewhere or len(assigned) < len(stored) or not self._is_assigned_first(loop.body, attr):
            return False
        names = {*all_names(loop), *(one.attr for one in ast.walk(loop) if isinstance(one, ast.Attribute))}
        before = any(one.lineno < loop.lineno for one in every)
        return all(
            is_without_code(one, attr)
            and (not before or attr in vars(one).get("_buffers", {}))  # no program has what an earlier call left
            and not _is_other(one, attr)
            and not _is_held_below(one)
            and not _may_see(attr, names - {attr}, self.purity.function, one)
            for one in self.purity.instances
        )

    def _assigns(self, node: ast.AST, attr: str) -> bool:
        match node:
            case ast.Assign(targets=[target], value=value) if _is_own(target, self.receiver, attr):
                return self.purity.gives_tensor(value)
        return False

    def _is_assigned_first(self, body: Sequence[ast.stmt], attr: str) -> bool:
        for one in body:
            used = [each for each in _own_in([one], self.receiver) if each.attr == attr]
            if self._assigns(one, attr):
                return len(used) == 1
            if used or any(exits_in(one)):
                return False
        return False


def _is_own(node: ast.AST, receiver: str, attr: str | None = None) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=found):
            return name == receiver and attr in (None, found)
    return False


def _own_in(statements: Sequence[ast.stmt], receiver: str) -> Iterator[ast.Attribute]:
    every = (one for statement in statements for one in ast.walk(statement))
    return (one for one in every if isinstance(one, ast.Attribute) and _is_own(one, receiver))


def _is_read(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_plain(over: ast.expr) -> bool:
    """Whether going over it runs no code between the steps, as far as its own code is known."""
    match over:
        case ast.Call(func=ast.Name(id="range"), keywords=[]):
            return not any(isinstance(one, ast.Call) for part in over.args for one in ast.walk(part))
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner], keywords=[]):
            return _is_plain(inner)
    return isinstance(over, ast.Attribute)


def _is_other(instance: Any, attr: str) -> bool:
    """Whether a module has a parameter or a submodule of that name, which no tensor can become."""
    held = vars(instance)
    return any(attr in held.get(kind, {}) for kind in ("_parameters", "_modules"))


def _is_held_below(instance: Any) -> bool:
    """Whether a module in this one has a reference to it."""
    below = (one for one in instance.modules() if one is not instance)
    values = (value for one in below for held in vars(one).values() for value in (held, *_items(held)))
    return any(value is instance for value in values)


def _items(held: Any) -> Sequence[Any]:
    if isinstance(held, dict):
        return [*held.values()]
    return [*held] if isinstance(held, list | tuple | set) else []


def _may_see(attr: str, names: set[str], function: FunctionType, instance: Any) -> bool:
    """Whether a function or property of these names, or what it calls, has to do with an attribute of that name, or
    reads attributes by names that only a run knows."""
    pending, seen = [(names, function)], set[CodeType]()
    while pending:
        names, of = pending.pop()
        for found in _functions(names, of, instance):
            if found.__code__ in seen or is_defined_in_torch(found):
                continue
            seen.add(found.__code__)
            used = {*_names_in(found.__code__)}
            if attr in used or used & _READ_BY_NAME:
                return True
            pending.append((used, found))
    return False


def _functions(names: set[str], function: FunctionType, instance: Any) -> Iterator[FunctionType]:
    """What these names may stand for in a function, or as attributes of the instance and of what the function knows."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    around = {name: _content(cell) for name, cell in cells.items()}
    known = [value for one in (function.__globals__, around) for name, value in one.items() if name in names]
    for one in known:  # which grows by what modules of Python have
        if isinstance(one, ModuleType) and one.__name__.split(".")[0] != "torch":
            held = [value for name, value in vars(one).items() if name in names]
            known += [value for value in held if not any(value is each for each in known)]
    known += [getattr(type(instance), name, None) for name in names]
    for one in (*known, *(vars(instance).get(name) for name in names)):
        plain = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
        if isinstance(plain, FunctionType):
            yield plain


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not bound yet
        return None


def _names_in(code: CodeType) -> Iterator[str]:
    """The names that code reads, and its texts, which may be names."""
    yield from (*code.co_names, *code.co_freevars)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names_in(one)
        elif isinstance(one, str):
            yield one

"""Arms of branches that assign to tensors which `self` holds: within the branch these are local names.

`if c: self.mean = y` becomes `mean = self.mean`, `if c: mean = y`, `self.mean = mean`: a choice between two tensors.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from exportdoctor.shims.rules.code.name_flow import all_names
from exportdoctor.shims.rules.code.writes import is_without_gradients

HELD = "_held"
"""How the names begin that stand for attributes."""
_LEAVES = (
    ast.Return, ast.Break, ast.Continue, ast.Raise, ast.Try, ast.With, ast.FunctionDef, ast.AsyncFunctionDef,
    ast.Lambda, ast.ClassDef, ast.Global, ast.Nonlocal, ast.Delete, ast.Yield, ast.YieldFrom, ast.Await,
)  # fmt: skip


def assign_by_names(function: ast.FunctionDef, is_open: Callable[[ast.expr], bool], instances: Sequence[Any]) -> None:
    """Rewrites, in place, the branches whose condition `is_open`, where each of `instances` holds the tensors and the
    arms do nothing else with `self` than to read what it holds and to call its submodules."""
    receiver = function.args.args[0].arg if function.args.args else ""
    stored = (one for one in ast.walk(function) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load))
    if instances and receiver and receiver not in {one.id for one in stored}:
        rewrite = _Assignments(receiver, is_open, instances, set(all_names(function)))
        function.body = [one for statement in function.body for one in _as_list(rewrite.visit(statement))]
        ast.fix_missing_locations(function)


class _Assignments(ast.NodeTransformer):
    def __init__(
        self, receiver: str, is_open: Callable[[ast.expr], bool], instances: Sequence[Any], names: set[str]
    ) -> None:
        self.receiver, self.is_open, self.instances, self.names = receiver, is_open, instances, names

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        arms = [*node.body, *node.orelse]
        if not self.is_open(node.test):
            self.generic_visit(node)
            return node
        held = dict.fromkeys(one.attr for one in self._own(arms) if isinstance(one.ctx, ast.Store))
        named = {attr: f"{HELD}_{attr}" for attr in held}
        if not held or not self._may_be_named(arms, held) or self.names & set(named.values()):
            return node
        swap = AttributesAsNames(self.receiver, named)
        node.body, node.orelse = ([swap.visit(one) for one in arm] for arm in (node.body, node.orelse))
        before, after = [], []
        for attr, name in named.items():
            read, kept = (ast.Attribute(ast.Name(self.receiver, ast.Load()), attr, ctx) for ctx in (_LOAD, _STORE))
            before.append(ast.copy_location(ast.Assign([ast.Name(name, _STORE)], read), node))
            after.append(ast.copy_location(ast.Assign([kept], ast.Name(name, _LOAD)), node))
        return [*before, node, *after]

    def _own(self, arms: Sequence[ast.stmt]) -> Iterator[ast.Attribute]:
        """What the arms read from `self`, or assign to it."""
        for one in _walk(arms):
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == self.receiver:
                yield one

    def _may_be_named(self, arms: Sequence[ast.stmt], held: dict[str, None]) -> bool:
        """Whether nothing in the arms could see that the assignments are made behind them."""
        import torch

        nodes, own = list(_walk(arms)), list(self._own(arms))
        bare = sum(isinstance(one, ast.Name) and one.id == self.receiver for one in nodes) - len(own)
        called = {one.func.attr for one in nodes if isinstance(one, ast.Call) and one.func in own}  # type: ignore[union-attr]
        changed = (one.target for one in nodes if isinstance(one, ast.AugAssign))
        return (
            not bare
            and not any(isinstance(one, _LEAVES) and not is_without_gradients(one) for one in nodes)
            and not any(isinstance(one, ast.Attribute) and one.attr in held for one in changed)
            and all(isinstance(getattr(one, name, None), torch.nn.Module) for one in self.instances for name in called)
            and all(_holds_tensor(one, attr) for one in self.instances for attr in held)
        )


class AttributesAsNames(ast.NodeTransformer):
    """Attributes of the receiver become the local names that are `named` for them."""

    def __init__(self, receiver: str, named: dict[str, str]) -> None:
        self.receiver, self.named = receiver, named

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == self.receiver and node.attr in self.named:
            return ast.copy_location(ast.Name(self.named[node.attr], node.ctx), node)
        self.generic_visit(node)
        return node


_LOAD, _STORE = ast.Load(), ast.Store()
_ACCESS = ("__setattr__", "__getattr__", "__getattribute__")


def is_without_code(instance: Any, attr: str) -> bool:
    """Whether the attribute of a module is read and assigned without code of the module's class."""
    import torch

    kind = type(instance)
    plain: Any = torch.nn.Module
    if not isinstance(instance, plain) or hasattr(kind, attr):
        return False
    return all(getattr(kind, name) is getattr(plain, name) for name in _ACCESS)


def _holds_tensor(instance: Any, attr: str) -> bool:
    """Whether it is a tensor, no parameter, that is read and assigned without code of the instance's class."""
    import torch

    if not is_without_code(instance, attr):
        return False
    value = vars(instance).get("_buffers", {}).get(attr, vars(instance).get(attr))
    return isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)


def _walk(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    for statement in statements:
        yield from ast.walk(statement)


def _as_list(found: Any) -> list[ast.stmt]:
    return found if isinstance(found, list) else [found]

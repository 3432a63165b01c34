"""Whether a piece of code does nothing but compute, as far as its syntax tree and what its names stand for can show.

Conservative: what is not understood is not pure. Assignments to local names only, no writes to attributes or items, no
raise, and calls of functions that are known to be pure: torch's, Python's, and the user's where their source is pure.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeGuard

from exportdoctor.core.failure.frames import is_defined_in_torch
from exportdoctor.shims.rules.code_swap import definition_of

_BUILTINS = frozenset({
    "abs", "all", "any", "bool", "dict", "enumerate", "float", "getattr", "hasattr", "int", "isinstance", "len", "list",
    "max", "min", "range", "reversed", "round", "slice", "sorted", "sum", "tuple", "zip",
})  # fmt: skip
_RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal", "poisson", "exponential", "seed", "set_", "save")
_STATEMENTS = (ast.Assign, ast.AnnAssign, ast.If, ast.For, ast.Return, ast.Pass, ast.Break, ast.Continue)
_REFUSED = (
    ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr, ast.Global, ast.Nonlocal, ast.AugAssign, ast.Delete,
)  # fmt: skip
_DEPTH = 4
_UNKNOWN = object()


@dataclass(frozen=True, kw_only=True)
class Purity:
    """Judges code of `function`; `instances` are the modules that its `self` may be, none where it has no self.

    Code that only computes or raises is pure, too, if it `may_raise`: where it does, no value is left to be wrong.
    `callees` are what local names may stand for: the modules that a loop goes over.
    """

    function: FunctionType
    instances: Sequence[Any] = ()
    depth: int = _DEPTH
    may_raise: bool = False
    callees: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def of_statements(self, statements: Sequence[ast.stmt]) -> bool:
        """Whether they only compute and bind local names, or return."""
        return all(self._is_pure_statement(statement) for statement in statements)

    def without_messages(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """They, but for what only prints, warns or logs, also inside each `if`; one of which nothing is left goes."""
        return [one for one in statements if not self._only_tells(one)]

    def _only_tells(self, node: ast.stmt) -> bool:
        if not isinstance(node, ast.If):
            return self._is_message(node)
        node.body = self.without_messages(node.body) or [ast.copy_location(ast.Pass(), node)]
        node.orelse = self.without_messages(node.orelse)
        left = [one for one in (*node.body, *node.orelse) if not isinstance(one, ast.Pass)]
        return not left and self.of_expression(node.test)

    def _is_message(self, node: ast.stmt) -> bool:
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
            return False
        call = node.value
        parts = [*call.args, *(keyword.value for keyword in call.keywords)]
        match call.func:
            case ast.Attribute(value=ast.Call(func=made)) if self._resolve(made) is logging.getLogger:
                tells = True
            case _:
                tells = _tells(self._resolve(call.func))
        return tells and all(map(self.of_expression, parts))

    def of_expression(self, node: ast.expr) -> bool:
        """Whether evaluating it changes nothing."""
        every = list(ast.walk(node))
        return not any(isinstance(one, _REFUSED) for one in every) and all(
            self._is_pure_call(one) for one in every if isinstance(one, ast.Call)
        )

    def _is_pure_statement(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Raise):
            return self.may_raise
        if not isinstance(node, _STATEMENTS):
            return False
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        bodies = [*getattr(node, "body", []), *getattr(node, "orelse", [])]
        inside = (
            replace(self, callees={**self.callees, **self._modules_of(node)}) if isinstance(node, ast.For) else self
        )
        parts = [getattr(node, name, None) for name in ("value", "test", "iter")]
        return (
            all(target is None or _binds_names_only(target) for target in targets)
            and all(self.of_expression(part) for part in parts if part is not None)
            and inside.of_statements(bodies)
        )

    def _modules_of(self, node: ast.For) -> dict[str, Sequence[Any]]:
        """The name in a loop over modules, `for layer in self.layers`, also enumerated, and what it stands for."""
        over, target = node.iter, node.target
        match over, target:
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner]), ast.Tuple(elts=[_, second]):
                over, target = inner, second
        found = self._resolve(over)
        bound = [one.id for each in node.body for one in ast.walk(each) if _is_bound(one)]
        if not isinstance(target, ast.Name) or target.id in bound or not _is_of_modules(found):
            return {}
        return {target.id: tuple(found)}

    def _is_pure_call(self, node: ast.Call) -> bool:
        if any(keyword.arg == "out" for keyword in node.keywords):
            return False
        if isinstance(node.func, ast.Name) and node.func.id in self.callees:
            return all(map(self._is_pure_callee, self.callees[node.func.id]))
        callee = self._resolve(node.func)
        if callee is not _UNKNOWN:
            return self._is_pure_callee(callee)
        return isinstance(node.func, ast.Attribute) and _is_pure_method(node.func)

    def _is_pure_callee(self, callee: Any) -> bool:
        import torch

        if isinstance(callee, torch.nn.Module):
            if callee.training or any(callee._forward_hooks.values()) or any(callee._forward_pre_hooks.values()):
                return False
            return is_defined_in_torch(type(callee)) or self._is_pure_function(type(callee).forward, (callee,))
        if isinstance(callee, FunctionType) and not is_defined_in_torch(callee):
            return self._is_pure_function(callee, ())
        if inspect.ismethod(callee):
            return self._is_pure_function(callee.__func__, (callee.__self__,))
        name = getattr(callee, "__name__", "")
        if callee is getattr(builtins, name, _UNKNOWN):
            return name in _BUILTINS
        if isinstance(callee, torch.dtype | torch.device) or callee is torch.device:
            return True
        known = callee is getattr(math, name, _UNKNOWN) or _is_of_torch(callee)
        return known and not name.endswith("_") and not any(word in name for word in _RANDOM)

    def _is_pure_function(self, function: Any, instances: Sequence[Any]) -> bool:
        if self.depth == 0 or not isinstance(function, FunctionType):
            return False
        node = definition_of(function)
        inner = Purity(
            function=function, instances=instances, depth=self.depth - 1, may_raise=self.may_raise
        )  # fmt: skip
        return node is not None and inner.of_statements(node.body)

    def _resolve(self, node: ast.expr) -> Any:
        """What a name, or an attribute of one, stands for, where it is the same in each call."""
        code = self.function.__code__
        match node:
            case ast.Name(id="self") if self.instances:
                return self.instances[0]
            case ast.Name(id=name) if name not in code.co_varnames and name not in code.co_cellvars:
                return self.function.__globals__.get(name, getattr(builtins, name, _UNKNOWN))
            case ast.Attribute(value=base, attr=name):
                holder = self._resolve(base)
                return _UNKNOWN if holder is _UNKNOWN or _is_value(holder) else getattr(holder, name, _UNKNOWN)
        return _UNKNOWN


def _is_bound(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_of_modules(value: Any) -> bool:
    import torch

    several = isinstance(value, torch.nn.ModuleList | torch.nn.Sequential | list | tuple)
    return several and all(isinstance(one, torch.nn.Module) for one in value)


def _tells(callee: Any) -> bool:
    """Whether it only gives its user a message. A logger's method may be a plain function that was set on its class."""
    owner = getattr(callee, "__self__", None)
    return callee is print or callee is warnings.warn or isinstance(owner, logging.Logger | logging.LoggerAdapter)


def _binds_names_only(target: ast.expr) -> bool:
    match target:
        case ast.Name():
            return True
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(_binds_names_only(part) for part in parts)
    return False


def _is_pure_method(node: ast.Attribute) -> bool:
    """A method of a value: one of a tensor that does not write."""
    import torch

    name = node.attr
    return (
        hasattr(torch.Tensor, name)
        and not name.endswith("_")
        and name not in {"backward", "resize", "apply", "map", "share_memory"}
        and not any(word in name for word in _RANDOM)
    )


def _is_value(holder: Any) -> bool:
    """A tensor or a plain value, whose methods are judged by their name."""
    import torch

    return isinstance(holder, torch.Tensor | int | float | str | list | dict | set)


def _is_of_torch(callee: Any) -> bool:
    import torch

    if isinstance(callee, BuiltinFunctionType | type(torch.Tensor.add)):
        owner = getattr(callee, "__self__", None)
        return owner is None or isinstance(owner, type | ModuleType)
    return is_defined_in_torch(callee) if hasattr(callee, "__module__") and callee.__module__ else False

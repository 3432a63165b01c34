"""Whether a piece of code does nothing but compute, as far as its syntax tree and what its names stand for can show.

Conservative: what is not understood is not pure. Assignments to local names, writes into what the code has made itself,
no raise, and calls of functions that are known to be pure: torch's, Python's, and those of the user whose source is.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import logging
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, TypeGuard

from exportdoctor.core.failure.frames import is_defined_in_torch
from exportdoctor.shims.rules.code.code_swap import definition_of
from exportdoctor.shims.rules.code.name_flow import is_arm, is_read_first
from exportdoctor.shims.rules.code.pure_callees import (
    NOT_KNOWN,
    has_pure_name,
    is_pure_function_of_torch,
    is_pure_layer,
    makes_record,
    runs_as_written,
)
from exportdoctor.shims.rules.code.writes import (
    ADDS,
    VIEWS,
    WRITE_BACK,
    is_in_place,
    is_in_place_update,
    is_without_gradients,
    parts_of,
)

_BUILTINS = frozenset({
    "abs", "all", "any", "bool", "dict", "enumerate", "float", "getattr", "hasattr", "int", "isinstance", "len", "list",
    "max", "min", "range", "reversed", "round", "slice", "sorted", "sum", "tuple", "zip",
})  # fmt: skip
_READS = frozenset({"copy", "count", "get", "index", "items", "keys", "values"})
"""Methods of lists, dicts and sets that only read."""
_STATEMENTS = (ast.Assign, ast.AnnAssign, ast.If, ast.For, ast.Return, ast.Pass, ast.Break, ast.Continue)
_REFUSED = (
    ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr, ast.Global, ast.Nonlocal, ast.AugAssign, ast.Delete,
)  # fmt: skip
_EXITS = (ast.Return, ast.Break, ast.Continue)
_DEPTH = 4
_UNKNOWN = object()


@dataclass(frozen=True, kw_only=True)
class Purity:
    """Judges code of `function`; `instances` are the modules that its `self` may be, none where it is no method.

    Code that only computes or raises is pure, too, if it `may_raise`: where it does, no value is left to be wrong.
    `callees` are what local names may stand for: the modules that a loop goes over. `tensors` and `containers` are
    names of tensors, and of lists and dicts, that the code may write into: it has made them itself.
    """

    function: FunctionType
    instances: Sequence[Any] = ()
    depth: int = _DEPTH
    may_raise: bool = False
    callees: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tensors: frozenset[str] = frozenset()
    containers: frozenset[str] = frozenset()

    def of_statements(self, statements: Sequence[ast.stmt]) -> bool:
        """Whether they only compute and bind local names, or return, in each of the instances."""
        return all(one._is_pure_statement(statement) for one in self._each() for statement in statements)

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
        if any(keyword.arg in {None, "file"} for keyword in call.keywords):
            return False  # what it prints to may be read again
        match call.func:
            case ast.Attribute(value=ast.Call(func=made)) if self._resolve(made) is logging.getLogger:
                tells = True
            case _:
                tells = all(_tells(one._resolve(call.func)) for one in self._each())
        return tells and all(map(self.of_expression, parts))

    def of_expression(self, node: ast.expr) -> bool:
        """Whether evaluating it changes nothing, in each of the instances."""
        every = list(ast.walk(node))
        return not any(isinstance(one, _REFUSED) for one in every) and all(
            one._is_pure_call(call) for one in self._each() for call in every if isinstance(call, ast.Call)
        )

    def gives_tensor(self, node: ast.expr) -> bool:
        """Whether an expression computes a tensor, as far as the code shows that: by an operator, or by a function, a
        method or a layer of torch. Its memory may be that of another one."""
        import torch

        if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare):
            return True
        if not isinstance(node, ast.Call):
            return False
        callee = self._resolve(node.func)
        if callee is _UNKNOWN:
            return isinstance(node.func, ast.Attribute) and hasattr(torch.Tensor, node.func.attr)
        return isinstance(callee, torch.nn.Module) or is_defined_in_torch(callee)

    def is_plain_attribute(self, node: ast.Attribute) -> bool:
        """Whether it is a value that its object holds, in each of the instances, and no property."""
        holders = [one._resolve(node.value) for one in self._each()]
        return all(holder is not _UNKNOWN and _holds_plainly(holder, node.attr) for holder in holders)

    def _each(self) -> list[Purity]:
        """The same for one instance each."""
        return [replace(self, instances=(one,)) for one in self.instances] if len(self.instances) > 1 else [self]

    def _is_pure_statement(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant) or self._writes_into_own(node.value)
        if isinstance(node, ast.AugAssign):
            return is_in_place_update(node) and self.of_expression(node.value) and self._may_add_to(node.target)
        if isinstance(node, ast.Raise):
            return self.may_raise
        if isinstance(node, ast.FunctionDef) and is_arm(node):
            return self.of_statements(node.body)
        if isinstance(node, ast.With) and is_without_gradients(node):
            return not any(isinstance(one, _EXITS) for one in ast.walk(node)) and self.of_statements(node.body)
        if not isinstance(node, _STATEMENTS):
            return False
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        bodies = [*getattr(node, "body", []), *getattr(node, "orelse", [])]
        inside = self.inside(node) if isinstance(node, ast.For) else self
        parts = [getattr(node, name, None) for name in ("value", "test", "iter")]
        return (
            all(target is None or self._is_pure_target(target) for target in targets)
            and all(self.of_expression(part) for part in parts if part is not None)
            and inside.of_statements(bodies)
        )

    def _is_pure_target(self, target: ast.expr) -> bool:
        return all(isinstance(one, ast.Name) or self._may_store_in(one) for one in parts_of(target))

    def _may_store_in(self, target: ast.expr) -> bool:
        match target:
            case ast.Subscript(value=ast.Name(id=name), slice=key) if name in self.containers:
                return self.of_expression(key)
        return isinstance(target, ast.Subscript) and self._is_part_of_own(target)

    def _may_add_to(self, target: ast.expr) -> bool:
        return (isinstance(target, ast.Name) and target.id in self.containers) or self._is_part_of_own(target)

    def _writes_into_own(self, node: ast.expr) -> bool:
        """Whether the call does nothing but write into what the code has made itself."""
        match node:
            case ast.Call(func=ast.Name(id=name)) if name == WRITE_BACK:
                return self.of_expression(node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=name)) if (
                name in ADDS and of in self.containers
            ):
                return self._has_pure_arguments(node)
            case ast.Call(func=ast.Attribute(value=base, attr=name)) if is_in_place(name):
                return self._is_part_of_own(base) and self._has_pure_arguments(node)
        return False

    def _has_pure_arguments(self, call: ast.Call) -> bool:
        return all(map(self.of_expression, (*call.args, *(one.value for one in call.keywords))))

    def _is_part_of_own(self, node: ast.expr) -> bool:
        """Whether it is what the code has made itself, or shares memory with that."""
        match node:
            case ast.Name(id=name):
                return name in self.tensors
            case ast.Subscript(value=value, slice=key):
                return self.of_expression(key) and self._is_part_of_own(value)
            case ast.Attribute(value=value, attr="T" | "mT"):
                return self._is_part_of_own(value)
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in VIEWS or is_in_place(name):
                return self._is_part_of_own(value) and self._has_pure_arguments(node)
        return False

    def inside(self, node: ast.For) -> Purity:
        """What judges the body of this loop."""
        return replace(self, callees={**self.callees, **self._modules_of(node), **self._items_of(node)})

    def _items_of(self, node: ast.For) -> dict[str, Sequence[Any]]:
        """The names that the body binds to one of several modules alone, `expert = self.experts[i]`, before it reads
        them; and what they stand for."""
        stored = Counter(one.id for each in node.body for one in ast.walk(each) if _is_bound(one))
        found: dict[str, list[list[Any]]] = {}
        for one in (part for each in node.body for part in ast.walk(each)):
            match one:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=holder)):
                    holders = [each._resolve(holder) for each in self._each()]
                    if all(map(_holds_modules, holders)):
                        found.setdefault(name, []).append([child for each in holders for child in each.children()])
        return {
            name: [child for each in children for child in each]
            for name, children in found.items()
            if len(children) == stored[name] and not is_read_first(name, node.body)
        }

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
        match node:
            case ast.Call(func=ast.Name(id=name), args=[ast.Lambda(body=root), _]) if name == WRITE_BACK:
                return self._is_part_of_own(root)
        if isinstance(node.func, ast.Name) and node.func.id in self.callees:
            return all(self._is_pure_callee(one, node) for one in self.callees[node.func.id])
        if isinstance(node.func, ast.Subscript) and _holds_modules(holder := self._resolve(node.func.value)):
            return all(self._is_pure_callee(one, node) for one in holder.children())
        callee = self._resolve(node.func)
        if callee is not _UNKNOWN:
            return self._is_pure_callee(callee, node)
        match node:
            case ast.Call(func=ast.Attribute(value=holder, attr=name), keywords=keywords):
                if isinstance(self._resolve(holder), list | dict | set):
                    return name in _READS
                return _is_pure_method(name) and not any(keyword.arg == "out" for keyword in keywords)
        return False

    def _is_pure_callee(self, callee: Any, node: ast.Call) -> bool:
        import torch

        if isinstance(callee, torch.nn.Module):
            return self._is_pure_module(callee)
        if getattr(callee, "only_computes", False) is True:
            return True
        if isinstance(callee, FunctionType) and not is_defined_in_torch(callee):
            return self._is_pure_function(callee, ())
        if inspect.ismethod(callee):
            return self._is_pure_function(callee.__func__, (callee.__self__,))
        name = getattr(callee, "__name__", "")
        if callee is getattr(builtins, name, _UNKNOWN):
            calls_key = any(one.arg == "key" and not isinstance(one.value, ast.Lambda) for one in node.keywords)
            return name in _BUILTINS and not calls_key
        if isinstance(callee, torch.dtype | torch.device) or callee is torch.device:
            return True
        if isinstance(callee, type) and makes_record(callee):
            return True
        if callee is getattr(math, name, _UNKNOWN):
            return True
        args = [self._value_of(one) for one in node.args if not isinstance(one, ast.Starred)]
        kwargs = {one.arg: self._value_of(one.value) for one in node.keywords if one.arg is not None}
        whole = len(args) + len(kwargs) == len(node.args) + len(node.keywords)
        return is_pure_function_of_torch(callee, args, kwargs, whole=whole)

    def _is_pure_module(self, module: Any) -> bool:
        if not runs_as_written(module):
            return False
        if is_pure_layer(module):
            return all(map(self._is_pure_module, module.children()))
        return self._is_pure_function(type(module).forward, (module,))

    def _value_of(self, node: ast.expr) -> Any:
        """The value of an argument, where it is the same in each call."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.IfExp(test=test, body=one, orelse=other):
                asked = self._value_of(test)
                return NOT_KNOWN if asked is NOT_KNOWN else self._value_of(one if asked else other)
        found = self._resolve(node)
        return NOT_KNOWN if found is _UNKNOWN else found

    def _is_pure_function(self, function: Any, instances: Sequence[Any]) -> bool:
        if self.depth == 0 or not isinstance(function, FunctionType):
            return False
        node = definition_of(function)
        inner = Purity(
            function=function, instances=instances, depth=self.depth - 1, may_raise=self.may_raise
        )  # fmt: skip
        return node is not None and inner.of_statements(node.body)

    def resolve(self, node: ast.expr) -> Any:
        """As `_resolve`, where it is the same for all instances; None otherwise."""
        found = [one._resolve(node) for one in self._each()]
        return found[0] if len(found) == 1 and found[0] is not _UNKNOWN else None

    def _resolve(self, node: ast.expr) -> Any:
        """What a name, or an attribute of one, stands for, where it is the same in each call."""
        code = self.function.__code__
        match node:
            case ast.Name(id=name) if self.instances and code.co_varnames[:1] == (name,):
                return self.instances[0]
            case ast.Name(id=name) if name in code.co_freevars:
                return _value_around(self.function, name)
            case ast.Name(id=name) if name not in code.co_varnames and name not in code.co_cellvars:
                return self.function.__globals__.get(name, getattr(builtins, name, _UNKNOWN))
            case ast.Attribute(value=base, attr=name):
                holder = self._resolve(base)
                return _UNKNOWN if holder is _UNKNOWN or _is_value(holder) else getattr(holder, name, _UNKNOWN)
        return _UNKNOWN


def _holds_plainly(holder: Any, name: str) -> bool:
    own = getattr(holder, "__dict__", {})
    state = [own, *(own[kind] for kind in ("_buffers", "_parameters") if isinstance(own.get(kind), dict))]
    return any(name in one for one in state) and not hasattr(getattr(type(holder), name, None), "__set__")


def _holds_modules(value: Any) -> bool:
    """Whether it is one of torch's own containers, of which an index gives one or several of the modules in it."""
    import torch

    return type(value) in (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)


def _value_around(function: FunctionType, name: str) -> Any:
    """What a function around it has under this name."""
    cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
    try:
        return cell.cell_contents
    except ValueError:  # it is not bound yet
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


def _is_pure_method(name: str) -> bool:
    """A method of a value: one of a tensor that does not write."""
    import torch

    writes = {"backward", "resize", "apply", "map", "share_memory"}
    return hasattr(torch.Tensor, name) and has_pure_name(name) and name not in writes


def _is_value(holder: Any) -> bool:
    """A tensor or a plain value, whose methods are judged by their name."""
    import torch

    return isinstance(holder, torch.Tensor | int | float | str | list | dict | set)

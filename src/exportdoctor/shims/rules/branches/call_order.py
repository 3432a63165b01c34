"""Takes calls out of an expression, so that statements can stand in their place: in the order in which Python computes.

What is computed before such a call gets a name, unless it gives the same thing behind it: `self.mean * 2 +
self.note(x)` becomes `_first = self.mean * 2`, the statements of `note`, and `_first + ...`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from exportdoctor.shims.rules.code.made_code import load
from exportdoctor.shims.rules.code.pure_code import Purity

Inlined = tuple[list[ast.stmt], ast.expr]


class CannotTakeOut(Exception):
    """A call stands where Python may not compute it, or cannot be replaced."""


@dataclass
class CallOrder:
    """Takes the calls that `is_taken` says out of expressions of a function, which `purity` judges. `inline` gives what
    stands in the place of one, and what it gives; `new_name` makes names."""

    purity: Purity
    is_taken: Callable[[ast.expr], bool]
    inline: Callable[[ast.Call], Inlined | None]
    new_name: Callable[[], str]
    before: list[ast.stmt] = field(default_factory=list)
    """The statements that come before what is left of the expression."""
    behind: list[ast.expr] = field(default_factory=list)
    """What is read behind these statements, and was before some of them."""

    def take_out(self, node: ast.expr) -> ast.expr:
        """What is left of an expression. Raises CannotTakeOut."""
        left = self._take_out(node)
        stored = {one.attr for part in self.before for one in ast.walk(part)
                  if isinstance(one, ast.Attribute) and not isinstance(one.ctx, ast.Load)}  # fmt: skip
        read = {one.attr for part in self.behind for one in ast.walk(part) if isinstance(one, ast.Attribute)}
        if stored & read:
            raise CannotTakeOut
        return left

    def keep_in_place(self, node: ast.expr) -> None:
        """Take it that an expression is computed behind the calls. Raises CannotTakeOut."""
        if not self._is_steady(node):
            raise CannotTakeOut
        self.behind.append(node)

    def _keep(self, node: ast.expr) -> ast.expr:
        """An expression that is computed before a call that is taken out."""
        if isinstance(node, ast.Starred):
            raise CannotTakeOut
        if self._is_steady(node):
            self.behind.append(node)
            return node
        name = self.new_name()
        self.before.append(ast.Assign([ast.Name(name, ast.Store())], node))
        return load(name)

    def _take_out(self, node: ast.expr) -> ast.expr:
        if not self._has_taken(node):
            return node
        parts = _parts_in_order(node)
        if parts is None:
            raise CannotTakeOut
        last = max((place for place, (part, _) in enumerate(parts) if self._has_taken(part)), default=-1)
        for place, (part, put) in enumerate(parts[: last + 1]):
            left = self._take_out(part)
            put(left if place == last else self._keep(left))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and last > 0:
            if not self._is_found_later(node.func):
                raise CannotTakeOut
            self.behind.append(node.func)
        if not isinstance(node, ast.Call) or not self.is_taken(node):
            return node
        found = self.inline(node)
        if found is None:
            raise CannotTakeOut
        self.before += found[0]
        return found[1]

    def _has_taken(self, node: ast.expr) -> bool:
        return any(isinstance(one, ast.expr) and self.is_taken(one) for one in ast.walk(node))

    def _is_steady(self, node: ast.expr) -> bool:
        """Whether it is the same object behind the calls, where these store no attribute of its name."""
        match node:
            case ast.Constant() | ast.Name():
                return True
            case ast.Attribute(value=value, attr="data" | "T" | "mT"):
                return isinstance(value, ast.Name | ast.Attribute) and self._is_steady(value)
            case ast.Attribute():
                return self.purity.is_plain_attribute(node) or self._is_of_module(node)
        return False

    def _is_found_later(self, method: ast.Attribute) -> bool:
        """Whether the method of a value is the same where it is looked for behind the calls."""
        import torch

        known = self.purity.resolve(method.value) is not None or self._is_receiver(method.value)
        return self._is_steady(method) if known else hasattr(torch.Tensor, method.attr)

    def _is_receiver(self, node: ast.expr) -> bool:
        names = self.purity.function.__code__.co_varnames[:1]
        return isinstance(node, ast.Name) and bool(self.purity.instances) and names == (node.id,)

    def _is_of_module(self, node: ast.Attribute) -> bool:
        """Whether it is a function of a module of Python, or a submodule or method of modules of torch."""
        held = self.purity.resolve(node.value)
        holders: Sequence[Any] = self.purity.instances if self._is_receiver(node.value) else [held]
        return all(isinstance(one, ModuleType) or _has_part(one, node.attr) for one in holders)


def _has_part(module: Any, name: str) -> bool:
    import torch

    plain: Any = torch.nn.Module
    if not isinstance(module, plain):
        return False
    found = inspect.getattr_static(type(module), name, None)
    return name in module._modules or (isinstance(found, FunctionType) and name not in vars(module))


Part = tuple[ast.expr, Callable[[ast.expr], None]]


def _parts_in_order(node: ast.expr) -> list[Part] | None:
    """The parts of an expression in the order in which Python computes them, each with what puts another one in its
    place; None where it may not compute them all. The method of a value is found when it is called."""
    match node:
        case ast.Call(func=ast.Attribute() as method, args=args, keywords=keywords):
            return [_attribute(method, "value"), *_items(args), *(_attribute(one, "value") for one in keywords)]
        case ast.Call(args=args, keywords=keywords):
            return [_attribute(node, "func"), *_items(args), *(_attribute(one, "value") for one in keywords)]
        case ast.BinOp():
            return [_attribute(node, "left"), _attribute(node, "right")]
        case ast.Compare(comparators=[_] as others):
            return [_attribute(node, "left"), *_items(others)]
        case ast.UnaryOp():
            return [_attribute(node, "operand")]
        case ast.Attribute() | ast.Starred():
            return [_attribute(node, "value")]
        case ast.Subscript():
            return [_attribute(node, "value"), _attribute(node, "slice")]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return _items(parts)
    return None


def _attribute(node: ast.AST, name: str) -> Part:
    return getattr(node, name), lambda value: setattr(node, name, value)


def _items(parts: list[ast.expr]) -> list[Part]:
    return [(one, lambda value, place=place: parts.__setitem__(place, value)) for place, one in enumerate(parts)]  # type: ignore[misc]

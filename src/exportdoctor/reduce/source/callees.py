"""Which functions a file defines, and what each of its calls gives them.

What a call refers to is guessed by its name, and rather too much than too little: whether an edit is right is for the
verdict to say.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from exportdoctor.reduce.source.names import is_self

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Callee:
    """A function, and how the file calls it.

    `names` are the names by which it is called; `instances` those of what, handed to another function
    together with a tuple of arguments, gets called by that (`export(model, (x, mask))`); `bound` is the
    number of leading parameters that no call gives.
    """

    function: Function
    names: frozenset[str]
    instances: frozenset[str]
    bound: int


def parameters(function: Function) -> tuple[ast.arg, ...]:
    """A function's named parameters, keyword-only ones last; neither `*args` nor `**kwargs`."""
    return (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)


def called_name(call: ast.Call) -> str | None:
    """The last part of what is called: `f` of `f(x)`, `attn` of `self.attn(x)`."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def callees(tree: ast.Module) -> Iterator[Callee]:
    """Every function and method that the file defines."""
    methods: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            methods.update(found)
            yield from (_method(tree, node, method) for method in found)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node not in methods:
            yield Callee(node, frozenset({node.name}), frozenset(), 0)


def _method(tree: ast.Module, owner: ast.ClassDef, method: Function) -> Callee:
    decorators = {decorator.id for decorator in method.decorator_list if isinstance(decorator, ast.Name)}
    bound = 0 if "staticmethod" in decorators else 1
    match method.name:
        case "__init__":
            return Callee(method, frozenset({owner.name}), frozenset(), bound)
        case "forward" | "__call__":
            instances = _instance_names(tree, owner.name)
            names = (instances | {method.name}) - {owner.name}
            return Callee(method, names, instances, bound)
    return Callee(method, frozenset({method.name}), frozenset(), bound)


def _instance_names(tree: ast.Module, owner: str) -> frozenset[str]:
    """The class, and all names and attributes that are given what mentions it or one of them."""
    found = {owner}
    while True:
        wider = found | {name for names, value in _bindings(tree) if mentions(value, found) for name in names}
        if wider == found:
            return frozenset(found)
        found = wider


def _bindings(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], ast.expr]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield tuple(name for target in targets for name in _names_in(target)), value
            case ast.For(target=target, iter=value):
                yield tuple(_names_in(target)), value


def _names_in(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) if not is_self(part):
                yield name
            case ast.Attribute(attr=name):
                yield name


def mentions(value: ast.AST, names: set[str] | frozenset[str]) -> bool:
    """Whether an expression has one of the names in it, as a variable or as an attribute."""
    return not names.isdisjoint(_names_in(value))

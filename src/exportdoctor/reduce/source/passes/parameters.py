"""Passes that drop a parameter of a function, or a field of a class, together with what each call gives for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exportdoctor.reduce.source.callees import Callee, called_name, callees, mentions, parameters
from exportdoctor.reduce.source.sweep import one_sweep
from exportdoctor.reduce.source.tree import Edit, remove_nodes, substitute


@one_sweep
def drop_parameters(tree: ast.Module) -> Iterator[Edit]:
    """Drop a parameter that is no longer used, and what is given for it at every call in the same file.

    `def forward(self, x, mask, cos, sin)` after all that used the mask is gone: the parameter cannot go
    before the argument does, nor the argument before the parameter; nor its place in `export(model, (x, mask,
    cos, sin), dynamic_shapes=({0: n}, {0: n}, None, None))`.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for callee in callees(tree):
        for place in reversed(range(callee.bound, len(parameters(callee.function)))):
            yield _without_parameter(callee, place, calls)


def drop_unread_parameters(source: str) -> str:
    """`source` without all parameters that no function reads, and what is given for them: one candidate."""
    while True:
        tree = ast.parse(source)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        edit = next((_without_parameter(callee, place, calls) for callee, place in _unread(tree)), None)
        if edit is None:
            return source
        source = ast.unparse(ast.fix_missing_locations(substitute(tree, edit)))


def _unread(tree: ast.Module) -> Iterator[tuple[Callee, int]]:
    """Without functions that are handed on as a value: what calls them gives each parameter by its place."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    handed = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in called
    }
    for callee in callees(tree):
        read = {node.id for part in callee.function.body for node in ast.walk(part) if isinstance(node, ast.Name)}
        for place, parameter in reversed(list(enumerate(parameters(callee.function)))):
            if place >= callee.bound and parameter.arg not in read and callee.function.name not in handed:
                yield callee, place


@one_sweep
def drop_fields(tree: ast.Module) -> Iterator[Edit]:
    """Drop a field of a dataclass or a named tuple, and what is given for it wherever one is made.

    `Output(scores=None, hidden=None)`, returned where no such class may be: the field cannot go before what is given
    for it, nor that before the field, and with both fields goes the import of `dataclasses`.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            made = [call for call in calls if called_name(call) == node.name]
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
            for place, field in reversed(list(enumerate(fields))):
                if isinstance(field.target, ast.Name):
                    edit = remove_nodes(field)
                    for call in made:
                        edit = {**edit, **_call_without(call.args, call.keywords, place, field.target.id)}
                    yield edit


def _without_parameter(callee: Callee, place: int, calls: list[ast.Call]) -> Edit:
    arguments, dropped = callee.function.args, parameters(callee.function)[place]
    position = -1 if dropped in arguments.kwonlyargs else place - callee.bound
    edit: dict[ast.AST, tuple[ast.AST, ...]] = {arguments: (_arguments_without(arguments, dropped),)}
    for call in calls:
        if called_name(call) in callee.names:
            edit |= _call_without(call.args, call.keywords, position, dropped.arg)
        elif any(mentions(argument, callee.instances) for argument in call.args):
            handed = [value for value in _values(call) if not mentions(value, callee.instances)]
            edit |= _handed_without(handed, position, dropped.arg)
    return edit


def _call_without(args: list[ast.expr], keywords: list[ast.keyword], position: int, name: str) -> Edit:
    given = args[: position + 1]
    found: list[ast.AST] = [keyword for keyword in keywords if keyword.arg == name]
    if len(given) == position + 1 > 0 and not any(isinstance(value, ast.Starred) for value in given):
        found.append(given[-1])
    return remove_nodes(*found)


def _values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _handed_without(handed: list[ast.expr], position: int, name: str) -> Edit:
    """Without the parameter's place in each tuple or list that a call hands on, and its name in each dict."""
    edit: dict[ast.AST, tuple[ast.AST, ...]] = {}
    for value in handed:
        match value:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                edit |= _call_without(parts, [], position, name)
            case ast.Dict(keys=keys, values=values):
                for key, part in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        edit |= remove_nodes(key, part)
    return edit


def _arguments_without(arguments: ast.arguments, dropped: ast.arg) -> ast.arguments:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    optional = zip(positional[required:], arguments.defaults, strict=True)
    keyword_only = list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    return ast.arguments(
        posonlyargs=[arg for arg in arguments.posonlyargs if arg is not dropped],
        args=[arg for arg in arguments.args if arg is not dropped],
        vararg=arguments.vararg,
        kwonlyargs=[arg for arg, _ in keyword_only if arg is not dropped],
        kw_defaults=[default for arg, default in keyword_only if arg is not dropped],
        kwarg=arguments.kwarg,
        defaults=[default for arg, default in optional if arg is not dropped],
    )

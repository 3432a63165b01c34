"""Passes that put a value or a body where its name stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exportdoctor.reduce.source.callees import Function, called_name, parameters
from exportdoctor.reduce.source.names import reads_of
from exportdoctor.reduce.source.sweep import one_sweep
from exportdoctor.reduce.source.tree import Edit, remove_nodes, statement_lists, substitute


@one_sweep
def inline_assignments(tree: ast.Module) -> Iterator[Edit]:
    """Put an assigned value where the name is read, up to where the name is assigned again.

    After the other passes, `counts = grid.tolist()`, `first = counts[0]`, `int(first)` is what is left of
    forty lines: three statements that a maintainer reads faster as one.
    """
    for statements in statement_lists(tree):
        for place, statement in enumerate(statements):
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    reads = reads_of(name, statements[place + 1 :])
                    if reads:
                        yield {**remove_nodes(statement), **dict.fromkeys(reads, (value,))}


@one_sweep
def inline_attributes(tree: ast.Module) -> Iterator[Edit]:
    """Put a constant where an attribute of that name is read, all constants at once and then one by one.

    `for _ in range(self.config.num_layers)` needs a configuration, a class for it, an `__init__` that sets it: four
    statements for a number.
    """
    constants = dict(_constant_attributes(tree))
    edits = [{**remove_nodes(made), **dict.fromkeys(_reads(tree, name), (value,))}
             for made, (name, value) in constants.items()]  # fmt: skip
    together: dict[ast.AST, tuple[ast.AST, ...]] = {}
    for edit in edits:
        together |= edit
    yield together
    yield from edits


def _constant_attributes(tree: ast.Module) -> Iterator[tuple[ast.stmt, tuple[str, ast.expr]]]:
    """Statements that give an attribute a constant, in a class or through `self`."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(body=body):
                for part in body:
                    match part:
                        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant() as value):
                            yield part, (name, value)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=ast.Constant() as value):
                yield node, (name, value)


def _reads(tree: ast.Module, name: str) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
            yield node


@one_sweep
def inline_imports(tree: ast.Module) -> Iterator[Edit]:
    """Write `torch.nn` for an `nn` that was imported from there, where `torch` is imported anyway.

    `from torch import nn` for a single `nn.Module`: one line that a repro of ten can do without.
    """
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in modules and node.level == 0:
            owner = ast.parse(node.module, mode="eval").body
            yield {**remove_nodes(node), **_qualify(tree, owner, node.names)}


def _qualify(tree: ast.Module, owner: ast.expr, aliases: list[ast.alias]) -> Edit:
    full = {alias.asname or alias.name: ast.Attribute(owner, alias.name, ast.Load()) for alias in aliases}
    return {node: (full[node.id],) for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in full}


@one_sweep
def inline_functions(tree: ast.Module) -> Iterator[Edit]:
    """Put a function's body in place of its calls and drop the function; only if each of its calls can be.

    The failing line is in `get_window_index`, called by `forward` in one place: the repro needs the line, and
    neither the helper's signature nor the tuple in which it returned four other things.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            calls = [call for call in ast.walk(tree) if isinstance(call, ast.Call) and called_name(call) == node.name]
            for edit in (_inlined_expression(node, calls), _inlined_body(tree, node, calls)):
                if edit:
                    yield {**edit, node: ()}


def inline_single_calls(source: str) -> str:
    """`source` with the body of each function that is mentioned once, in a call, in the place of that: one candidate.

    What the caller and the function compute for each other can then go by data flow.
    """
    while True:
        tree = ast.parse(source)
        edit = next(filter(None, (_inlined_once(tree, node) for node in tree.body)), None)
        if edit is None:
            return source
        source = ast.unparse(ast.fix_missing_locations(substitute(tree, edit)))


def _inlined_once(tree: ast.Module, function: ast.stmt) -> Edit:
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return {}
    own = set(ast.walk(function))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == function.name]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called_name(node) == function.name]
    if len(names) != 1 or len(calls) != 1 or calls[0] in own:
        return {}
    edit = _inlined_expression(function, calls) or _inlined_body(tree, function, calls)
    return {**edit, function: ()} if edit else {}


@one_sweep
def inline_lambdas(tree: ast.Module) -> Iterator[Edit]:
    """Put a lambda where a function of one statement is named, if that is one place.

    `torch.cond(wide, crop, keep, (x,))`, where `crop` has only its failing `if` left and `keep` nothing: two
    definitions of three lines each, for what a maintainer reads faster in the call.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.decorator_list and len(node.body) == 1:
            uses = [use for use in ast.walk(tree) if isinstance(use, ast.Name) and use.id == node.name]
            value = _value_of(node.body[0])
            if len(uses) == 1 and value is not None:
                yield {node: (), uses[0]: (ast.Lambda(node.args, value),)}


def _value_of(statement: ast.stmt) -> ast.expr | None:
    """An expression with the effect of a statement; None if there is none."""
    match statement:
        case ast.Return(value=ast.expr() as value) | ast.Expr(value=value):
            return value
        case ast.Pass() | ast.Return():
            return ast.Constant(None)
        case ast.If(test=test, body=[one], orelse=other) if len(other) <= 1:
            first, second = _value_of(one), _value_of(other[0]) if other else ast.Constant(None)
            return ast.IfExp(test, first, second) if first is not None and second is not None else None
    return None


def _inlined_expression(function: ast.FunctionDef, calls: list[ast.Call]) -> Edit:
    """For a function that only returns an expression: each call becomes it, with arguments for parameters."""
    match function.body:
        case [ast.Return(value=ast.expr() as value)]:
            bound = [(call, _arguments_of(function, call)) for call in calls]
        case _:
            return {}
    edit: Edit = {call: (_with_arguments(value, given),) for call, given in bound if given is not None}
    return edit if len(edit) == len(calls) else {}


def _with_arguments(value: ast.expr, given: dict[str, ast.expr]) -> ast.AST:
    names = [node for node in ast.walk(value) if isinstance(node, ast.Name) and node.id in given]
    return substitute(value, {name: (given[name.id],) for name in names})


def _inlined_body(tree: ast.Module, function: ast.FunctionDef, calls: list[ast.Call]) -> Edit:
    """For a function whose calls are whole statements: assign its parameters, then its body and its value."""
    edit: dict[ast.AST, tuple[ast.AST, ...]] = {}
    for statement in ast.walk(tree):
        match statement:
            case ast.Assign(value=ast.Call() as call) | ast.Return(value=ast.Call() as call):
                replacement = _splice_body(function, call, statement) if call in calls else None
            case ast.Expr(value=ast.Call() as call):
                replacement = _splice_body(function, call, statement) if call in calls else None
            case _:
                replacement = None
        if replacement is not None:
            edit[statement] = replacement
    return edit if len(edit) == len(calls) else {}


def _splice_body(function: ast.FunctionDef, call: ast.Call, statement: ast.AST) -> tuple[ast.AST, ...] | None:
    given = _arguments_of(function, call)
    if given is None:
        return None
    *body, last = function.body
    assigned = [
        ast.Assign([ast.Name(name, ast.Store())], value)
        for name, value in given.items()
        if not (isinstance(value, ast.Name) and value.id == name)
    ]
    match last:
        case ast.Return(value=ast.expr() as value):
            return (*assigned, *body, substitute(statement, {call: (value,)}))
        case ast.Return():
            return (*assigned, *body)
    return (*assigned, *body, last)


def _arguments_of(function: Function, call: ast.Call) -> dict[str, ast.expr] | None:
    """The argument of each parameter, as the call gives it or by default; None where one is missing, or all the rest
    is read."""
    wanted = [parameter.arg for parameter in parameters(function)]
    rest = {one.arg for one in (function.args.vararg, function.args.kwarg) if one is not None}
    if any(isinstance(node, ast.Name) and node.id in rest for part in function.body for node in ast.walk(part)):
        return None
    receiver = [call.func.value] if isinstance(call.func, ast.Attribute) and wanted[:1] == ["self"] else []
    given = dict(zip(wanted, [*receiver, *call.args], strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in wanted}
    optional = zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)
    given = {one.arg: value for one, value in optional if isinstance(value, ast.Constant | ast.Name)} | given
    return given if given.keys() == set(wanted) else None

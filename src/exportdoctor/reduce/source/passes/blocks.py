"""Passes that replace a compound statement by what it holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from exportdoctor.reduce.source.names import reads_of
from exportdoctor.reduce.source.sweep import one_sweep
from exportdoctor.reduce.source.tree import Edit, replace_node


@one_sweep
def unwrap_blocks(tree: ast.Module) -> Iterator[Edit]:
    """Replace `if`, loops, `with`, `try`, `match` and definitions by one of their bodies, outermost first.

    `if self.config.use_window: for t, h, w in grid: ...` around the one failing line: neither the condition
    nor the loop is part of the bug, and as long as they stand, so must the configuration and the grid.
    """
    for node in ast.walk(tree):
        for body in _bodies(node):
            yield replace_node(node, *body)


def _bodies(node: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    match node:
        case ast.If(body=body, orelse=orelse):
            yield from (body, orelse) if orelse else (body,)
        case ast.For(iter=values, body=body) | ast.AsyncFor(iter=values, body=body):
            yield from (body, [ast.Expr(values)])
        case ast.While(body=body):
            yield body
        case ast.With(items=[ast.withitem(value, ast.expr() as target)], body=body):
            yield [ast.Assign([target], value), *body]
        case ast.With(body=body) | ast.AsyncWith(body=body):
            yield body
        case ast.Try() | ast.TryStar():
            yield [*node.body, *node.orelse, *node.finalbody]
            yield node.body
            yield from (handler.body for handler in node.handlers)
        case ast.Match(cases=cases):
            yield from (case.body for case in cases)
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body) | ast.ClassDef(body=body):
            yield body


@one_sweep
def narrow_zips(tree: ast.Module) -> Iterator[Edit]:
    """Let a loop over `zip(*rows)` go over the first row alone, with what that gives in all places.

    `for q, k, v in zip(*splits)`, where `splits` holds the same cut of three tensors: as long as there are three names
    there must be three tensors, and each costs the tracer as much as the first.
    """
    for node in ast.walk(tree):
        match node:
            case ast.For(target=ast.Tuple() as target, iter=values, body=body):
                edit = _narrow_zip(target, values, body)
            case ast.ListComp(elt=one, generators=[ast.comprehension(target=ast.Tuple() as target, iter=values)]):
                edit = _narrow_zip(target, values, [ast.Expr(one)])
            case _:
                continue
        if edit:
            yield {**edit, **_first_row_alone(tree, values)}
            yield edit


def _first_row_alone(tree: ast.Module, values: ast.expr) -> Edit:
    """Where the rows are made in a comprehension over a tuple: that tuple with its first element alone."""
    names = [node.id for node in ast.walk(values) if isinstance(node, ast.Name)]
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.ListComp(generators=[ast.comprehension(iter=ast.Tuple(elts=[first, *_]) as several)]),
            ) if name in names:
                return {several: (ast.Tuple([first], ast.Load()),)}
    return {}


def _narrow_zip(target: ast.Tuple, values: ast.expr, body: list[ast.stmt]) -> Edit:
    match values:
        case ast.Call(func=ast.Name("zip"), args=[ast.Starred(value=rows)]):
            edit: dict[ast.AST, tuple[ast.AST, ...]] = {values: (_item(rows, 0),)}
        case _:
            return {}
    names = [one.id for one in target.elts if isinstance(one, ast.Name)]
    if names:
        edit[target] = (ast.Name(names[0], ast.Store()),)
        for name in names[1:]:
            edit |= dict.fromkeys(reads_of(name, body), (ast.Name(names[0], ast.Load()),))
    return edit


@one_sweep
def unroll_loops(tree: ast.Module) -> Iterator[Edit]:
    """Replace a loop by its first round, with the value itself where the loop's variable is read.

    `for t, h, w in grid.tolist(): int(w)` is `int(grid.tolist()[0][2])`, of which other passes then take away
    the `[0][2]` or the `tolist`; while the loop stands, they can do neither. A comprehension is a loop too.
    """
    for node in ast.walk(tree):
        match node:
            case ast.For() | ast.AsyncFor():
                yield {node: tuple(node.body), **_in_first_round(node.target, node.iter, node.body)}
            case (
                ast.ListComp(elt=one, generators=[ast.comprehension(target, values)])
                | ast.GeneratorExp(elt=one, generators=[ast.comprehension(target, values)])
            ):
                reads = _in_first_round(target, values, [ast.Expr(one)])
                yield {node: (one,), **reads}
                yield {node: (ast.List([one], ast.Load()),), **reads}


def _in_first_round(target: ast.expr, values: ast.expr, body: list[ast.stmt]) -> Edit:
    """What becomes of each place in a loop's body that reads its variables."""
    edit: dict[ast.AST, tuple[ast.AST, ...]] = {}
    for name, value in _first_round(target, values):
        edit |= dict.fromkeys(reads_of(name, body), (value,))
    return edit


def _first_round(target: ast.expr, values: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What each name of a loop's target holds in the first round."""
    match values:
        case ast.Call(func=ast.Name("range")):
            yield from _bindings(target, ast.Constant(0))
        case ast.Call(func=ast.Name("zip"), args=[ast.Starred(value=rows)]):
            if isinstance(target, ast.Tuple):
                items = [_item(_item(rows, place), 0) for place in range(len(target.elts))]
                yield from _bindings(target, ast.Tuple(items, ast.Load()))
        case ast.Call(func=ast.Name("zip"), args=parts):
            yield from _bindings(target, ast.Tuple([_item(part, 0) for part in parts], ast.Load()))
        case ast.Call(func=ast.Name("enumerate"), args=[part, *_]):
            yield from _bindings(target, ast.Tuple([ast.Constant(0), _item(part, 0)], ast.Load()))
        case _:
            yield from _bindings(target, _item(values, 0))


def _bindings(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ast.Tuple(elts=targets), ast.Tuple(elts=parts):
            for inner, part in zip(targets, parts, strict=False):
                yield from _bindings(inner, part)
        case ast.Tuple(elts=targets), _:
            for place, inner in enumerate(targets):
                yield from _bindings(inner, _item(value, place))


def _item(value: ast.expr, place: int) -> ast.expr:
    return ast.Subscript(value, ast.Constant(place), ast.Load())

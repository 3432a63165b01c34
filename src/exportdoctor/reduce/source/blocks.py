"""Passes that replace a compound statement by what it holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exportdoctor.reduce.source.names import reads_of
from exportdoctor.reduce.source.sweep import one_sweep
from exportdoctor.reduce.source.tree import Edit, replaced


@one_sweep
def unwrap_blocks(tree: ast.Module) -> Iterator[Edit]:
    """Replace `if`, loops, `with`, `try`, `match` and definitions by one of their bodies, outermost first.

    `if self.config.use_window: for t, h, w in grid: ...` around the one failing line: neither the condition
    nor the loop is part of the bug, and as long as they stand, so must the configuration and the grid.
    """
    for node in ast.walk(tree):
        for body in _bodies(node):
            yield replaced(node, *body)


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    match node:
        case ast.If(body=body, orelse=orelse):
            yield from (body, orelse) if orelse else (body,)
        case ast.For(body=body) | ast.AsyncFor(body=body) | ast.While(body=body):
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
def unroll_loops(tree: ast.Module) -> Iterator[Edit]:
    """Replace a loop by its first round, with the value itself where the loop's variable is read.

    `for t, h, w in grid.tolist(): int(w)` is `int(grid.tolist()[0][2])`, of which other passes then take away
    the `[0][2]` or the `tolist`; while the loop stands, they can do neither.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor):
            edit: dict[ast.AST, tuple[ast.AST, ...]] = {node: tuple(node.body)}
            for name, value in _first_round(node.target, node.iter):
                edit |= dict.fromkeys(reads_of(name, node.body), (value,))
            yield edit


def _first_round(target: ast.expr, values: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What each name of a loop's target holds in the first round."""
    match values:
        case ast.Call(func=ast.Name("range")):
            yield from _bound(target, ast.Constant(0))
        case ast.Call(func=ast.Name("zip"), args=parts):
            yield from _bound(target, ast.Tuple([_item(part, 0) for part in parts], ast.Load()))
        case ast.Call(func=ast.Name("enumerate"), args=[part, *_]):
            yield from _bound(target, ast.Tuple([ast.Constant(0), _item(part, 0)], ast.Load()))
        case _:
            yield from _bound(target, _item(values, 0))


def _bound(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ast.Tuple(elts=targets), ast.Tuple(elts=parts):
            for inner, part in zip(targets, parts, strict=False):
                yield from _bound(inner, part)
        case ast.Tuple(elts=targets), _:
            for place, inner in enumerate(targets):
                yield from _bound(inner, _item(value, place))


def _item(value: ast.expr, place: int) -> ast.expr:
    return ast.Subscript(value, ast.Constant(place), ast.Load())

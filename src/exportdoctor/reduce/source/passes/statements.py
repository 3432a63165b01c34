"""Passes that remove whole statements, or what a statement does with its value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from exportdoctor.reduce.ddmin import chunk_sizes, chunks_from_the_back
from exportdoctor.reduce.search_protocol import Search
from exportdoctor.reduce.source.names import is_self
from exportdoctor.reduce.source.source_version import SourceVersion
from exportdoctor.reduce.source.sweep import one_sweep, sweep
from exportdoctor.reduce.source.tree import Edit, holds_statements, remove_nodes, replace_node, statement_lists


def thin_statements(text: str, allowed: frozenset[str]) -> Search[str, str]:
    """Remove runs of statements: large ones first, outermost lists first, and in a list the last ones first.

    A vision tower's failure needs 5 of the 1,800 lines of its modelling file. Most classes go by halves and
    quarters of the file; line by line would be a question for each. From the back, because `return y` must go
    before `y = f(x)` can, and because what comes after the failing line does not matter.
    """
    version = SourceVersion.of(text)
    longest = max(map(len, statement_lists(version.tree)), default=0) if version else 0
    for size in chunk_sizes(longest):
        text = yield from sweep(text, allowed, partial(_removed_runs, size=size))
    return text


def _removed_runs(tree: ast.Module, size: int) -> Iterator[Edit]:
    for statements in statement_lists(tree):
        for chunk in chunks_from_the_back(len(statements), size):
            yield remove_nodes(*statements[chunk])


@one_sweep
def drop_targets(tree: ast.Module) -> Iterator[Edit]:
    """Keep a statement's expression and drop what becomes of it.

    `hidden = int(grid[0])`, where the `int` is what fails: the shortest repro has the bare call, and no name
    that a reader would look for further down.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Assign(value=value) | ast.AugAssign(value=value) | ast.Return(value=ast.expr() as value):
                yield replace_node(node, ast.Expr(value))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield replace_node(node, ast.Expr(value))
                yield replace_node(node, ast.Assign([target], value))


@one_sweep
def drop_names(tree: ast.Module) -> Iterator[Edit]:
    """Remove a variable or an attribute of `self` everywhere: each innermost statement that mentions it.

    `self.scale = 2.0` in `__init__` and `x = x * self.scale` in `forward` can only go together: without the
    first the second dies of an AttributeError, and without the second a later statement may miss the name
    that it sets.
    """
    mentions: dict[str, list[ast.stmt]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            for name in dict.fromkeys(_mentioned_names(node)):
                mentions.setdefault(name, []).append(node)
    for statements in mentions.values():
        if len(statements) > 1:
            yield remove_nodes(*statements)


def _mentioned_names(statement: ast.stmt) -> Iterator[str]:
    """NameUse in a statement, not in those that it holds; an attribute of `self` with a leading dot."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name):
                yield name
            case ast.Attribute(value=value, attr=name) if is_self(value):
                yield f".{name}"
                continue
        pending += [child for child in ast.iter_child_nodes(node) if not holds_statements(child)]

"""Edits of a syntax tree: which node is replaced by what, and the nodes that result.

Trees are never changed: an edit gives new nodes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import TypeAlias, TypeGuard, cast

Edit: TypeAlias = Mapping[ast.AST, tuple[ast.AST, ...]]
"""What each node becomes: several nodes only in a list, none only where a node may be absent."""

_ALIGNED_LISTS = frozenset({"kw_defaults"})
"""Lists in which an absent node is None, because they run parallel to another one."""


def replace_node(node: ast.AST, *by: ast.AST) -> Edit:
    """The edit that puts other nodes, usually one, in the place of a node."""
    return {node: by}


def remove_nodes(*nodes: ast.AST) -> Edit:
    """The edit that removes nodes."""
    return dict.fromkeys(nodes, ())


def is_export(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether it is the call of an exporter."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "export"


def substitute(node: ast.AST, edit: Edit) -> ast.AST:
    """The node, itself replaced or with replacements inside; for building an edit out of another."""
    return next(apply_edit(node, edit))


def apply_edit(node: ast.AST, edit: Edit) -> Iterator[ast.AST]:
    """What a node becomes: its replacements, which may hold nodes that are replaced in turn.

    Raises ValueError where several nodes would have to fit into one place.
    """
    if node not in edit:
        yield _rebuilt(node, edit)
        return
    for replacement in edit[node]:
        if replacement is node:
            yield _rebuilt(node, edit)
        else:
            yield from apply_edit(replacement, edit)


def _rebuilt(node: ast.AST, edit: Edit) -> ast.AST:
    fields = {name: _field(name, value, edit) for name, value in ast.iter_fields(node)}
    if fields.get("body") == []:
        fields["body"] = [ast.Pass()]
    return ast.copy_location(type(node)(**fields), node)


def _field(name: str, value: object, edit: Edit) -> object:
    if isinstance(value, ast.AST):
        return _single(name, tuple(apply_edit(value, edit)))
    if isinstance(value, list):
        return list(_splice(name, value, edit))
    return value


def _single(name: str, nodes: tuple[ast.AST, ...]) -> ast.AST | None:
    if len(nodes) > 1:
        raise ValueError(f"{len(nodes)} nodes do not fit into the field {name!r}")
    return nodes[0] if nodes else None


def _splice(name: str, values: list[object], edit: Edit) -> Iterator[object]:
    for value in values:
        if not isinstance(value, ast.AST):
            yield value
            continue
        nodes = tuple(apply_edit(value, edit))
        yield from nodes or ((None,) if name in _ALIGNED_LISTS else ())


_IMPORT_WEIGHT = 10
"""What an imported name weighs: a repro that needs one less may be a few nodes longer for it."""


def weight(tree: ast.AST) -> int:
    """How many syntax nodes a tree has, itself included; an imported name counts as ten."""
    return sum(_IMPORT_WEIGHT if isinstance(node, ast.alias) else 1 for node in ast.walk(tree))


def statement_lists(tree: ast.AST) -> Iterator[tuple[ast.stmt, ...]]:
    """Every list of statements, of exception handlers and of match cases, outermost first."""
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and holds_statements(value[0]):
                yield cast(tuple[ast.stmt, ...], tuple(value))


def holds_statements(node: object) -> bool:
    """Whether a node is a statement, an exception handler or a match case."""
    return isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case)

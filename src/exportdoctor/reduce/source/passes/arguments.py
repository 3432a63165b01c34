"""Passes that drop what an expression or a definition can do without: arguments, elements, optional parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exportdoctor.reduce.source.sweep import one_sweep
from exportdoctor.reduce.source.tree import Edit, is_export, remove_nodes, replace_node

_OPTIONAL_FIELDS = {
    "annotation",
    "bases",
    "cause",
    "decorator_list",
    "defaults",
    "ifs",
    "items",
    "keywords",
    "kwarg",
    "kw_defaults",
    "lower",
    "msg",
    "names",
    "orelse",
    "returns",
    "step",
    "targets",
    "upper",
    "vararg",
}
"""Fields, of whatever node, that may be absent or one element shorter."""


@one_sweep
def drop_optional_parts(tree: ast.Module) -> Iterator[Edit]:
    """Drop a decorator, an annotation, a default, a base class, a slice's bound, a message, an imported name.

    `@merge_with_config_defaults` over `def forward(self, x: torch.Tensor, **kwargs: Unpack[Kwargs]) ->
    Output`: each of the five names is an import that the repro would otherwise have to carry.
    """
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if name in _OPTIONAL_FIELDS:
                parts = reversed(value) if isinstance(value, list) else (value,)
                yield from (remove_nodes(part) for part in parts if _is_droppable(part))


def _is_droppable(part: object) -> bool:
    return isinstance(part, ast.AST) and not isinstance(part, ast.stmt)


@one_sweep
def drop_arguments(tree: ast.Module) -> Iterator[Edit]:
    """Drop an argument of a call, the last one first, keywords before positions.

    `softmax(scores, dim=-1, dtype=torch.float32)`: neither keyword has to do with why the scores cannot be
    traced. What is exported stays whole: `torch.onnx.export(Model())` fails as well, and nobody would write it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            dropped = node.keywords if is_export(node) else [*node.args, *node.keywords]
            yield from (remove_nodes(argument) for argument in reversed(dropped))


@one_sweep
def drop_elements(tree: ast.Module) -> Iterator[Edit]:
    """Drop an element of a tuple, list, set or dict, or an operand of a chain of `and`, `or` or comparisons.

    `return last_hidden, pooled, attentions`: the failure is in how `pooled` was made; the others only keep
    the rest of the function alive.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Tuple(elts=[_], ctx=ast.Store()):
                continue  # `for () in rows` runs, but who would write it
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                yield from (remove_nodes(part) for part in reversed(parts))
            case ast.BoolOp(values=parts) if len(parts) > 2:
                yield from (remove_nodes(part) for part in reversed(parts))
            case ast.Dict(keys=keys, values=values):
                pairs = list(zip(keys, values, strict=True))
                yield from (remove_nodes(key, value) for key, value in reversed(pairs) if key is not None)
            case ast.Compare(left, ops, comparators) if len(ops) > 1:
                yield replace_node(node, ast.Compare(left, ops[:-1], comparators[:-1]))
                yield replace_node(node, ast.Compare(comparators[0], ops[1:], comparators[1:]))


@one_sweep
def drop_paired_elements(tree: ast.Module) -> Iterator[Edit]:
    """Drop a target together with the value that it is given, in an assignment or a loop over `zip`.

    `grid_t, grid_h, grid_w = int(grid_t), int(grid_h), int(grid_w)`, the first finding in Qwen2.5-VL: one
    `int` of the three is enough, and neither side can lose an element alone.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names) as target], value=ast.Tuple(elts=parts) as value):
                yield from _without_pair(target, names, value, parts)
            case ast.For(target=ast.Tuple(elts=names) as target, iter=ast.Call(ast.Name("zip"), parts) as value):
                yield from _without_pair(target, names, value, parts)
            case ast.For(
                target=ast.Tuple(elts=[_, name]) as target,
                iter=ast.Call(ast.Name("enumerate"), [values, *_]) as value,
            ):
                yield {target: (name,), value: (values,)}


def _without_pair(target: ast.Tuple, names: list[ast.expr], value: ast.expr, parts: list[ast.expr]) -> Iterator[Edit]:
    if len(names) != len(parts) or any(isinstance(part, ast.Starred) for part in (*names, *parts)):
        return
    if len(names) == 2:
        for name, part in zip(names, parts, strict=True):
            yield {target: (name,), value: (part,)}
        return
    for name, part in reversed(list(zip(names, parts, strict=True))):
        yield remove_nodes(name, part)

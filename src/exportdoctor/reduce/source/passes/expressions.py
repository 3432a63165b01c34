"""The pass that replaces an expression by a part of itself or by a literal."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exportdoctor.reduce.source.sweep import one_sweep
from exportdoctor.reduce.source.tree import Edit, replace_node


@one_sweep
def simplify_expressions(tree: ast.Module) -> Iterator[Edit]:
    """Replace each expression by a literal or by one of its operands, outermost first.

    `y = self.norm(x + self.bias).reshape(-1, 4)[0]` before a line that fails on `y`: one question each
    shows that `y = x` will do, and the norm, the bias and everything that defines them can then be removed.
    """
    imported = _module_names(tree)
    for parent in ast.walk(tree):
        for expression in _replaceable(parent):
            literal = _literal(parent, expression)
            if literal is not None:
                yield replace_node(expression, literal)
            for part in _parts(expression):
                if not (isinstance(part, ast.Name) and part.id in imported):
                    yield replace_node(expression, part)


def _module_names(tree: ast.Module) -> frozenset[str]:
    """NameUse of modules, and `self`: no value worth computing with."""
    aliases = [
        alias for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    ]
    return frozenset({"self", "cls"} | {alias.asname or alias.name.split(".")[0] for alias in aliases})


def _replaceable(parent: ast.AST) -> Iterator[ast.expr]:
    """Child expressions that are read; not what is called, decorates, annotates or formats."""
    skipped = {"func", "decorator_list", "annotation", "returns", "format_spec"}
    for name, value in ast.iter_fields(parent):
        if name not in skipped:
            yield from (child for child in (value if isinstance(value, list) else [value]) if _is_read(child))


def _is_read(node: object) -> bool:
    if not isinstance(node, ast.expr) or isinstance(node, ast.FormattedValue | ast.Starred | ast.Slice):
        return False
    return isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def _literal(parent: ast.AST, expression: ast.expr) -> ast.expr | None:
    """The literal that can stand here: 0 among operands, None elsewhere, nothing where neither fits."""
    if isinstance(expression, ast.Constant):
        return None
    match parent:
        case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.Slice():
            return ast.Constant(0)
        case ast.Subscript() if parent.slice is expression:
            return ast.Constant(0)
        case ast.Call() | ast.keyword() | ast.Assign() | ast.AnnAssign() | ast.Return() | ast.arguments():
            return ast.Constant(None)
        case ast.Tuple() | ast.List() | ast.Dict() | ast.Set() | ast.IfExp():
            return ast.Constant(None)
    return None


def _parts(expression: ast.expr) -> Iterator[ast.expr]:
    """The operands of an expression that could stand in its place, first the one that it is mostly about."""
    match expression:
        case ast.Subscript(value=ast.Tuple() | ast.List() | ast.ListComp() as value):
            yield value
            yield from _elements(value)
        case ast.BinOp(left=left, right=right):
            yield from (left, right)
        case ast.Compare(left=left, comparators=comparators):
            yield from (left, *comparators)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield from (body, orelse, test)
        case ast.UnaryOp(operand=value) | ast.Lambda(body=value) | ast.Await(value=value):
            yield value
        case ast.Subscript(value=value, slice=index):
            yield value
            bounds = (index.lower, index.upper) if isinstance(index, ast.Slice) else _parts_of_index(index)
            yield from (bound for bound in bounds if bound is not None and not isinstance(bound, ast.Constant))
        case ast.Attribute(value=value) | ast.NamedExpr(value=value):
            yield value
        case _:
            yield from _elements(expression)


def _parts_of_index(index: ast.expr) -> Iterator[ast.expr | None]:
    """`k` of `x[k]`, and of `x[:, :k]`."""
    if not isinstance(index, ast.Tuple):
        yield index
        return
    for one in index.elts:
        yield from (one.lower, one.upper) if isinstance(one, ast.Slice) else (one,)


def _elements(expression: ast.expr) -> Iterator[ast.expr]:
    """The parts of an expression that has any number of them: of a call the receiver and the arguments."""
    match expression:
        case ast.Call(func=func, args=args, keywords=keywords):
            if isinstance(func, ast.Attribute):
                yield func.value
            yield from map(_without_star, args)
            yield from (keyword.value for keyword in keywords)
        case ast.BoolOp(values=values) | ast.Dict(values=values):
            yield from values
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            yield from map(_without_star, elements)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            yield from (expression.elt, expression.generators[0].iter)
        case ast.DictComp(value=value, generators=generators):
            yield from (value, generators[0].iter)


def _without_star(expression: ast.expr) -> ast.expr:
    return expression.value if isinstance(expression, ast.Starred) else expression

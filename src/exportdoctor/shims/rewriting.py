"""The only place that makes a new function of another's source: same names, same file and lines, other statements."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any


def rewritten(
    function: Callable[..., Any], change: ast.NodeTransformer, *, names: dict[str, Any] | None = None
) -> Callable[..., Any] | None:
    """`function` with `change` applied to its tree, in its own namespace and with `names` besides.

    `None` where that changes nothing, or where the source is unknown or closes over variables of another function.
    """
    plain = inspect.unwrap(function)
    if not inspect.isfunction(plain) or plain.__code__.co_freevars:
        return None
    try:
        source, first = inspect.getsource(plain), inspect.getsourcelines(plain)[1]
        tree = ast.parse(textwrap.dedent(source))
    except (OSError, TypeError, SyntaxError):
        return None
    before = ast.dump(tree)
    tree = ast.fix_missing_locations(change.visit(tree))
    node = tree.body[0]
    if ast.dump(tree) == before or not isinstance(node, ast.FunctionDef):
        return None
    node.decorator_list = []
    ast.increment_lineno(tree, first - 1)
    scope = {**plain.__globals__, **(names or {})}
    exec(compile(tree, plain.__code__.co_filename, "exec"), scope)
    made = scope[node.name]
    made.__defaults__, made.__kwdefaults__ = plain.__defaults__, plain.__kwdefaults__
    return functools.update_wrapper(made, plain)


def rewritten_source(source: str, change: ast.NodeTransformer) -> str:
    """The source of a definition with `change` applied, as Python prints it."""
    return ast.unparse(ast.fix_missing_locations(change.visit(ast.parse(textwrap.dedent(source))))) + "\n"

"""Functions made of other functions: the same code with other globals, or the same source with other statements."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from exportdoctor.core.parse_indented import parse_indented


def rebind_globals(function: Callable[..., Any], names: dict[str, Any]) -> Callable[..., Any]:
    """The same code, in which these global names mean something else."""
    plain: Any = function
    copy: Any = FunctionType(
        plain.__code__, {**plain.__globals__, **names}, plain.__name__, plain.__defaults__, plain.__closure__
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    return functools.update_wrapper(copy, function)


class Overlay:
    """A proxy of a namespace in which some names are overridden."""

    def __init__(self, below: Any, **names: Any) -> None:
        self.__dict__.update(names)
        self.__dict__["_below"] = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_below"], name)


@functools.lru_cache(maxsize=512)
def function_tree(function: Callable[..., Any]) -> ast.FunctionDef | None:
    """The syntax tree of a function's definition, inside all decorators; `None` where there is no source."""
    try:
        tree = parse_indented(inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    node = tree.body[0] if tree.body else None
    return node if isinstance(node, ast.FunctionDef) else None


def rewrite_source(source: str, change: ast.NodeTransformer) -> str:
    """The source of a definition with `change` applied, as Python prints it."""
    return ast.unparse(ast.fix_missing_locations(change.visit(parse_indented(source)))) + "\n"

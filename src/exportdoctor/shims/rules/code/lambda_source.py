"""The source of a lambda that is the only one to begin on its line, as a definition with one `return`."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

LAMBDA = "<lambda>"
"""How Python calls each function that a lambda makes."""


def definition_of_lambda(code: CodeType) -> ast.FunctionDef | None:
    """What its code does, with the line numbers of its file. `None` where there is no source, where the file has other
    code there by now, and where several lambdas begin on that line."""
    try:
        lines, _ = inspect.findsource(code)
        found = _lone_lambdas("".join(lines), code.co_filename).get(code.co_firstlineno)
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if found is None or _content(found[1]) != _content(code):
        return None
    return as_definition(copy.deepcopy(found[0]))


def as_definition(node: ast.Lambda) -> ast.FunctionDef:
    """A definition that does the same, under the name that Python gives a lambda's function."""
    returned = ast.copy_location(ast.Return(node.body), node.body)
    made = ast.FunctionDef(LAMBDA, node.args, [returned], [], None, None)
    return ast.copy_location(made, node)


@lru_cache(maxsize=32)
def _lone_lambdas(text: str, file: str) -> dict[int, tuple[ast.Lambda, CodeType]]:
    """The lambdas of a file by the line on which each begins, where it is the only one, with the code of each."""
    nodes, codes = dict[int, list[ast.Lambda]](), dict[int, list[CodeType]]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Lambda):
            nodes.setdefault(node.lineno, []).append(node)
    for code in _all_inside(compile(text, file, "exec", dont_inherit=True)) if nodes else ():
        if code.co_name == LAMBDA:
            codes.setdefault(code.co_firstlineno, []).append(code)
    return {
        line: (found[0], codes[line][0])
        for line, found in nodes.items()
        if len(found) == 1 and len(codes.get(line, [])) == 1
    }


def _all_inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _all_inside(constant)


def _content(code: CodeType) -> tuple[Any, ...]:
    """All that the code is, with the types of its constants: Python takes 1, 1.0 and True for equal."""
    constants = tuple(_content(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts)
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_name, code.co_code, constants, counts, names, code.co_exceptiontable, tuple(code.co_lines())

"""Parses a definition as it stands in its file, whatever its indentation."""

from __future__ import annotations

import ast


def parse_indented(text: str) -> ast.Module:
    """The syntax tree of statements that are indented alike; each line and column is that of the text.

    Comments and lines of strings may stand further left than the code. Raises SyntaxError.
    """
    try:
        return ast.parse(text)
    except IndentationError:
        tree = ast.parse(f"if True:\n{text}")
    match tree.body:
        case [ast.If(orelse=[]) as around]:
            pass
        case _:
            raise SyntaxError("the lines are not indented alike")
    return ast.increment_lineno(ast.Module(body=around.body, type_ignores=[]), -1)

"""Pieces of the syntax trees that rewritten code is made of."""

from __future__ import annotations

import ast

from exportdoctor.shims.rules.code.code_swap import ARM

NO_VALUE = "_no_value"
"""The name by which rewritten code calls the mark of a name that is not bound yet."""


def load(name: str) -> ast.Name:
    """A name that is read."""
    return ast.Name(name, ast.Load())


def call_of(name: str, *arguments: ast.expr) -> ast.Call:
    """A call of a function by its name."""
    return ast.Call(load(name), list(arguments), [])


def thunk(value: ast.expr) -> ast.expr:
    """A function without parameters that computes the value where it is called."""
    return ast.Lambda(ast.arguments([], [], ast.arg(ARM), [], [], None, []), value)

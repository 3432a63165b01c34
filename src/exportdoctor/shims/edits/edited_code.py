"""A shim that runs a function of a file as an edit of that file has it. Nothing on disk changes."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.edits.source_text import changed_function
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Shim
from exportdoctor.shims.rules.code.code_swap import compile_for, inside_decorators, swap_code


def edit_shim(*, id: str, title: str, file: str, before: str, after: str) -> Shim:
    """A shim under which the function of `file` that differs between two texts of it runs as in the second."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        node = changed_function(before, after)
        if node is None or (function := _function_at(call, file, node.name, _first_lines(node))) is None:
            raise NotApplicable("the function of the edit is not one that can be replaced")
        node.decorator_list = []
        code = compile_for(function, node)
        if code is None:
            raise NotApplicable("the edited function needs other variables of the function around it")
        with swap_code({function: code}, {"torch": sys.modules["torch"]} if "torch" in code.co_names else {}):
            yield call

    return Shim(id=id, title=title, soundness="exact", enter=enter)


def _first_lines(node: ast.FunctionDef) -> set[int]:
    """Where its code may begin: at `def` or at a decorator."""
    return {node.lineno, *(one.lineno for one in node.decorator_list)}


def _function_at(call: ExportCall, file: str, name: str, lines: set[int]) -> FunctionType | None:
    """The function of that name defined there, among the methods of the module's classes and the file's own names."""
    path = os.path.realpath(file)

    def is_meant(code: CodeType) -> bool:
        return code.co_name == name and code.co_firstlineno in lines and os.path.realpath(code.co_filename) == path

    holders: list[Any] = list(dict.fromkeys(kind for module in call.module.modules() for kind in type(module).__mro__))
    for module in list(sys.modules.values()):
        if os.path.basename(getattr(module, "__file__", None) or "") == os.path.basename(path):
            holders += [module, *(value for value in list(vars(module).values()) if isinstance(value, type))]
    values = (value for holder in holders for value in list(vars(holder).values()) if not isinstance(value, type))
    return next((found for value in values for found in inside_decorators(value, is_meant)), None)

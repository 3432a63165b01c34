"""A shim that runs a function of a file as an edit of that file has it. Nothing on disk changes."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.edits.source_text import changed_function, changed_lambda
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Shim
from exportdoctor.shims.rules.code.code_swap import (
    all_code,
    attached_functions,
    compile_for,
    definition_of,
    inside_decorators,
    swap_code,
)
from exportdoctor.shims.rules.code.lambda_source import LAMBDA, as_definition

_WHERE, _SIDES = "torch.where", 3
_RUNS = "_edit_runs"
"""The name by which edited code calls what notes that it runs."""

_CHOOSES = "_edit_chooses"
"""The name by which it calls what looks at a `torch.where` that the edit has written."""


def edit_shim(*, id: str, title: str, file: str, before: str, after: str) -> Shim:
    """A shim under which the function of `file` that differs between two texts of it runs as in the second; a lambda
    that modules hold does so itself. Not applicable where the export does not run what was replaced."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        functions, node = _find_edited(call, file, before, after)
        if node is None or not functions:
            raise NotApplicable("the function of the edit is not one that can be replaced")
        runs: list[None] = []
        joined: list[str] = []
        known = definition_of(functions[0])
        node.decorator_list = []
        if not call.options.strict:  # dynamo may refuse what the notes do
            node = _Choices(_choices_in(known) if known is not None else set()).visit(node)
            noted = ast.Expr(ast.Call(ast.Name(_RUNS, ast.Load()), [], []))
            node.body.insert(0, ast.copy_location(noted, node.body[0]))
        codes = {one: code for one in functions if (code := compile_for(one, node)) is not None}
        if len(codes) < len(functions):
            raise NotApplicable("the edited function needs other variables of the function around it")
        names: dict[str, Any] = {_RUNS: lambda: runs.append(None), _CHOOSES: partial(_look_at_choice, joined)}
        if any("torch" in each.co_names for code in codes.values() for each in all_code(code)):
            names["torch"] = sys.modules["torch"]

        def check(_: object = None) -> None:
            if not runs and not call.options.strict:
                raise NotApplicable(f"the export does not run {functions[0].__qualname__}, which it changes")
            if joined:
                raise NotApplicable(joined[0])

        with swap_code(codes, names):
            try:
                yield replace(call, checks=(*call.checks, check))
            except Exception:
                check()
                raise

    return Shim(id=id, title=title, soundness="exact", enter=enter)


class _Choices(ast.NodeTransformer):
    """Has the result and the two sides of each `torch.where` that an edit has written looked at."""

    def __init__(self, known: set[str]) -> None:
        self.known, self.count = known, 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_new = ast.unparse(node.func) == _WHERE and ast.dump(node) not in self.known and len(node.args) == _SIDES
        self.generic_visit(node)
        if not is_new:
            return node
        self.count += 1
        names = [f"{_CHOOSES}_{side}_{self.count}" for side in ("one", "other")]
        sides = [
            ast.NamedExpr(ast.Name(name, ast.Store()), arg) for name, arg in zip(names, node.args[1:], strict=True)
        ]
        made = ast.Call(node.func, [node.args[0], *sides], node.keywords)
        looked_at = [made, *(ast.Name(name, ast.Load()) for name in names)]
        return ast.copy_location(ast.Call(ast.Name(_CHOOSES, ast.Load()), looked_at, []), node)


def _choices_in(function: ast.FunctionDef) -> set[str]:
    return {
        ast.dump(node) for node in ast.walk(function) if isinstance(node, ast.Call) and ast.unparse(node.func) == _WHERE
    }


def _look_at_choice(joined: list[str], made: Any, one: Any, other: Any) -> Any:
    """What `torch.where` made; notes where it has another dtype than a side, which a branch leaves as it is."""
    import torch

    apart = [side.dtype for side in (one, other) if isinstance(side, torch.Tensor) and side.dtype != made.dtype]
    if apart:
        names = (str(dtype).removeprefix("torch.") for dtype in (*apart, made.dtype))
        joined.append("a branch gives {}, of which torch.where makes {}".format(*names))
    return made


def _find_edited(
    call: ExportCall, file: str, before: str, after: str
) -> tuple[list[FunctionType], ast.FunctionDef | None]:
    """The functions that differ, and what they become."""
    if (changed := changed_lambda(before, after)) is not None:
        is_meant = _is_at(file, LAMBDA, {changed.lineno})
        held = [one for value in attached_functions(call.module) for one in inside_decorators(value, is_meant)]
        if held and all(definition_of(one) is not None for one in held):
            return list(dict.fromkeys(held)), as_definition(changed)
    node = changed_function(before, after)
    function = _function_at(call, file, node.name, _first_lines(node)) if node is not None else None
    return [function] if function is not None else [], node


def _first_lines(node: ast.FunctionDef) -> set[int]:
    """Where its code may begin: at `def` or at a decorator."""
    return {node.lineno, *(one.lineno for one in node.decorator_list)}


def _function_at(call: ExportCall, file: str, name: str, lines: set[int]) -> FunctionType | None:
    """The function of that name defined there, among the methods of the module's classes and the file's own names."""
    path, is_meant = os.path.realpath(file), _is_at(file, name, lines)
    holders: list[Any] = list(dict.fromkeys(kind for module in call.module.modules() for kind in type(module).__mro__))
    for module in list(sys.modules.values()):
        if os.path.basename(getattr(module, "__file__", None) or "") == os.path.basename(path):
            holders += [module, *(value for value in list(vars(module).values()) if isinstance(value, type))]
    values = (value for holder in holders for value in list(vars(holder).values()) if not isinstance(value, type))
    return next((found for value in values for found in inside_decorators(value, is_meant)), None)


def _is_at(file: str, name: str, lines: set[int]) -> Callable[[CodeType], bool]:
    """Whether code is that of a function of this name which begins there."""
    path = os.path.realpath(file)

    def is_meant(code: CodeType) -> bool:
        return code.co_name == name and code.co_firstlineno in lines and os.path.realpath(code.co_filename) == path

    return is_meant

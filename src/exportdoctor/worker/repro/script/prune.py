"""Cuts a definition's syntax tree to what ran, and decides which of the user's code goes into a script."""

from __future__ import annotations

import ast
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from exportdoctor.worker.repro.script.recorder import Record, Site
from exportdoctor.worker.repro.script.source_lookup import Definition, start_line, tree_of

_KEPT_DECORATORS = ("staticmethod", "classmethod", "property", "torch", "functools", "contextlib", "dataclass")


@dataclass(frozen=True, kw_only=True)
class CodeSelection:
    """Which of the user's code goes into a script.

    Without a `record` of what ran, all of it. With `substitute`, calls of user functions that always returned the same
    plain value or function are replaced by that. `decorators`: all of them stay, not only those of torch and Python.
    """

    record: Record | None
    substitute: bool
    decorators: bool
    mentioned: AbstractSet[str] | None
    """The attribute names that the code reads; None for all."""

    @classmethod
    def of(cls, record: Record | None, *, substitute: bool, decorators: bool) -> CodeSelection:
        """The selection for what `record` says, with the attribute names that its functions mention."""
        mentioned = None if record is None else _mentioned_names(record, substitute=substitute)
        return cls(record=record, substitute=substitute, decorators=decorators, mentioned=mentioned)

    def has(self, path: str, function: ast.FunctionDef) -> bool:
        """Whether a function of the file at `path` ran, or there is no record."""
        return self.record is None or (path, start_line(function)) in self.record.codes

    def mentions(self, attribute: str) -> bool:
        """Whether the code reads an attribute of that name."""
        return self.mentioned is None or attribute in self.mentioned

    def prune(self, function: ast.FunctionDef, path: str, name: str) -> ast.FunctionDef:
        """A function's definition without what did not run, as `name`; one that did not run at all stays whole."""
        record = self.record if self.has(path, function) else None
        new = _Pruner(path, record, substitute=self.substitute).with_bodies(function)
        new.name = name
        new.decorator_list = self.decorators_of(function)
        if record is not None and len(new.decorator_list) < len(function.decorator_list):
            _take_keywords(new, record.taken.get((path, start_line(function)), set()))
        return new  # type: ignore[no-any-return]

    def decorators_of(self, node: Definition) -> list[ast.expr]:
        """The decorators that a definition keeps."""
        return [one for one in node.decorator_list if self.decorators or ast.unparse(one).startswith(_KEPT_DECORATORS)]


def _take_keywords(function: ast.FunctionDef, names: AbstractSet[str]) -> None:
    """Let a function take keywords that a decorator, which is gone, has kept from it."""
    given = function.args
    known = {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    for name in sorted(names - known):
        given.kwonlyargs.append(ast.arg(name))
        given.kw_defaults.append(ast.Constant(None))


def _mentioned_names(record: Record, *, substitute: bool) -> set[str]:
    """Every attribute name, and every string that could be one, in the functions that ran."""
    found: set[str] = set()
    for path, line in sorted(record.codes):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, Definition) and start_line(node) == line and not isinstance(node, ast.ClassDef):
                for inner in ast.walk(_Pruner(path, record, substitute=substitute).with_bodies(node)):
                    match inner:
                        case ast.Attribute(attr=name):
                            found.add(name)
                        case ast.Constant(value=str(name)) if name.isidentifier():
                            found.add(name)
    return found


class _Pruner(ast.NodeTransformer):
    """A copy of a function without docstrings, annotations and what did not run.

    With `substitute`, calls of user functions that always returned the same plain value become that value, and those
    that returned a function become a `ReturnedFunction`, for the script to name.
    """

    def __init__(self, path: str, record: Record | None, *, substitute: bool) -> None:
        self.path = path
        self.record = record
        self.substitute = substitute

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The statements that ran, each pruned; at least one."""
        kept: list[ast.stmt] = []
        for statement in statements:
            if _is_docstring(statement) or not self._ran(statement):
                continue
            new = self.visit(statement)
            kept += new if isinstance(new, list) else [new]
        return kept or [ast.Pass()]

    def _ran(self, node: ast.stmt) -> bool:
        if self.record is None or isinstance(node, ast.Global | ast.Nonlocal | ast.Import | ast.ImportFrom):
            return True
        return self.record.ran(self.path, node.lineno, node.end_lineno or node.lineno)

    def _any_ran(self, body: list[ast.stmt]) -> bool:
        return any(self._ran(statement) for statement in body)

    def visit_If(self, node: ast.If) -> Any:
        """Without the test where only `else` was ever taken."""
        taken, other = self._any_ran(node.body), self._any_ran(node.orelse)
        test: ast.expr = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.body(node.body if test.value else node.orelse) if node.orelse or test.value else ast.Pass()
        if self.record is not None and other and not taken:
            return self.body(node.orelse)
        return ast.If(test, self.body(node.body) if taken else [ast.Pass()], self.body(node.orelse) if other else [])

    def visit_Try(self, node: ast.Try) -> Any:
        """Without the handlers where none was taken."""
        if self.record is not None and not any(self._any_ran(handler.body) for handler in node.handlers):
            return [*self.body(node.body), *(self.body(node.orelse) if self._any_ran(node.orelse) else [])]
        return self.with_bodies(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """A nested function."""
        return self.with_bodies(node)

    def visit_For(self, node: ast.For) -> Any:
        """A loop."""
        return self.with_bodies(node)

    visit_While = visit_With = visit_AsyncFunctionDef = visit_For  # type: ignore[assignment]

    def with_bodies(self, node: Any) -> Any:
        """The node with each of its statement lists pruned."""
        fields: dict[str, Any] = {}
        for name, value in ast.iter_fields(node):
            if name in ("body", "finalbody") and value:
                fields[name] = self.body(value)
            elif name == "orelse":
                fields[name] = self.body(value) if self._any_ran(value) else []
            elif isinstance(value, list):
                fields[name] = [self.visit(item) if isinstance(item, ast.AST) else item for item in value]
            else:
                fields[name] = self.visit(value) if isinstance(value, ast.AST) else value
        if "returns" in fields:
            fields["returns"] = None
        return ast.copy_location(type(node)(**fields), node)

    def generic_visit(self, node: ast.AST) -> Any:
        """A new node, because `node` belongs to the tree of a source file, which other drafts read too."""
        fields: dict[str, Any] = {}
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                visited = [self.visit(item) if isinstance(item, ast.AST) else item for item in value]
                fields[name] = [one for item in visited for one in (item if isinstance(item, list) else [item])]
            else:
                fields[name] = self.visit(value) if isinstance(value, ast.AST) else value
        return ast.copy_location(type(node)(**fields), node)

    def visit_arg(self, node: ast.arg) -> Any:
        """A parameter without its annotation."""
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """A plain assignment."""
        if node.value is None:
            return ast.Pass()
        return ast.Assign([self.visit(node.target)], self.visit(node.value), lineno=node.lineno)

    def visit_Call(self, node: ast.Call) -> Any:
        """A call, or the plain value that it always returned."""
        site: Site = (self.path, node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)
        returned = self.record.returned.get(site) if self.record is not None and self.substitute else None
        match returned:
            case ["plain", value]:
                return ast.Constant(value)
            case ["function", module, name]:
                return ReturnedFunction(id=name, ctx=ast.Load(), module=module)
        return self.generic_visit(node)


class ReturnedFunction(ast.Name):
    """The name of a function in `module`, in place of a call that returned it."""

    module: str
    _fields = ("id", "ctx")

    def __init__(self, *, id: str, ctx: ast.expr_context, module: str) -> None:
        super().__init__(id=id, ctx=ctx)
        self.module = module


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and (isinstance(statement.value.value, str))
    )

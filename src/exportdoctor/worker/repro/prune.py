"""Cuts a definition's syntax tree to what ran: the one place that knows what an untaken branch may be replaced by."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from typing import Any

from exportdoctor.worker.repro.recorder import Record, Site

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@lru_cache(maxsize=256)
def tree_of(path: str) -> ast.Module:
    """The syntax tree of a source file; an empty one where it has none."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def first_line(node: Definition) -> int:
    """The line of a definition's first decorator, or its own: what `co_firstlineno` says."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


@lru_cache(maxsize=4096)
def definition_at(path: str, line: int, name: str) -> Any:
    """The function or class called `name` whose first line is `line`; None where there is none."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, Definition) and node.name == name and line in (first_line(node), node.lineno):
            return node
    return None


def top_level(path: str, name: str) -> ast.stmt | None:
    """The last statement at a module's top level that binds `name`, inside `if` and `try` too."""
    found = None
    for statement in _module_statements(tree_of(path).body):
        if name in _bound(statement):
            found = statement
    return found


def _module_statements(body: list[ast.stmt]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.If | ast.Try):
            inner = [*statement.body, *statement.orelse]
            found += _module_statements(inner)
        else:
            found.append(statement)
    return found


def _bound(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).partition(".")[0] for alias in names}
        case ast.Assign(targets=targets):
            return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return {name}
    return set()


class Pruned(ast.NodeTransformer):
    """A copy of a function without docstrings, annotations and what did not run.

    `record` is None where nobody watched; with `substitute` calls of user functions that always returned the same
    plain value are that value, and those that returned a function are left as `Returned` for the script to name.
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
        return self._with_bodies(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """A nested function."""
        return self._with_bodies(node)

    def visit_For(self, node: ast.For) -> Any:
        """A loop."""
        return self._with_bodies(node)

    visit_While = visit_With = visit_AsyncFunctionDef = visit_For  # type: ignore[assignment]

    def _with_bodies(self, node: Any) -> Any:
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
        told = self.record.returned.get(site) if self.record is not None and self.substitute else None
        match told:
            case ["plain", value]:
                return ast.Constant(value)
            case ["function", module, name]:
                return Returned(id=name, ctx=ast.Load(), module=module)
        return self.generic_visit(node)


class Returned(ast.Name):
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


def mentioned_names(record: Record, *, substitute: bool) -> set[str]:
    """Every attribute name, and every string that could be one, in the functions that ran."""
    found: set[str] = set()
    for path, line in sorted(record.codes):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, Definition) and first_line(node) == line and not isinstance(node, ast.ClassDef):
                pruned = Pruned(path, record, substitute=substitute)._with_bodies(node)
                for inner in ast.walk(pruned):
                    if isinstance(inner, ast.Attribute):
                        found.add(inner.attr)
                    elif (
                        isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value.isidentifier()
                    ):
                        found.add(inner.value)
    return found

"""Where names are read, and which of them nothing defines: global names, and attributes of `self`.

A candidate that reads what it no longer defines can only raise a NameError, so a reduction never adds such a use.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# `.weight` is what a class may have from one of torch's (borrow_state in modules.py)
_ALWAYS_DEFINED = frozenset(dir(builtins)) | {"__file__", "__builtins__", ".weight"}


@dataclass(frozen=True)
class NameUse:
    """The global names, and with a leading dot the attributes of `self`, that a source binds and reads."""

    bound: frozenset[str]
    read: frozenset[str]

    @staticmethod
    def all_of(parts: Iterable[NameUse]) -> NameUse:
        """The names of several sources taken together."""
        several = tuple(parts)
        bound = frozenset[str]().union(*(names.bound for names in several))
        return NameUse(bound, frozenset[str]().union(*(names.read for names in several)))

    @property
    def undefined(self) -> frozenset[str]:
        """Names that are read and never bound, without Python's builtins."""
        return self.read - self.bound - _ALWAYS_DEFINED


def names_in(text: str, tree: ast.AST) -> NameUse:
    """The names of a source, given as text and as tree."""
    symbols = tuple(_global_symbols(symtable.symtable(text, "<candidate>", "exec")))
    bound = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported() or s.is_namespace()}
    read = {s.get_name() for s in symbols if s.is_referenced()}
    return NameUse(
        frozenset(bound | {f".{name}" for name in _given_to_self(tree)}),
        frozenset(read | {f".{name}" for name in _read_from_self(tree)}),
    )


def _global_symbols(module: symtable.SymbolTable) -> Iterator[symtable.Symbol]:
    for table in _tables(module):
        yield from (symbol for symbol in table.get_symbols() if table is module or symbol.is_global())


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def is_self(node: ast.AST) -> bool:
    """Whether a node is the name `self`, by convention the instance."""
    return isinstance(node, ast.Name) and node.id == "self"


def _read_from_self(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_self(node.value):
            yield node.attr


def _given_to_self(tree: ast.AST) -> Iterator[str]:
    """Attributes assigned, names in class bodies, names given as text (`register_buffer("x", x)`)."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.ClassDef(body=body):
                for statement in body:
                    yield from _bound_by(statement)
            case ast.Call(args=[ast.Constant(value=str(name)), *_]):
                yield name


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def reads_of(name: str, statements: Iterable[ast.stmt]) -> tuple[ast.AST, ...]:
    """Where `name` is read in `statements`, as far as it cannot have got another value."""
    found: list[ast.AST] = []
    for statement in statements:
        uses = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id == name]
        reads = [use for use in uses if isinstance(use.ctx, ast.Load)]
        rebinds = len(reads) < len(uses)
        if not rebinds or isinstance(statement, ast.Assign):
            found += reads
        if rebinds:
            break
    return tuple(found)

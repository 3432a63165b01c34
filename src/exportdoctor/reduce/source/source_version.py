"""One version of a source, and the next one after an edit.

A `SourceVersion` is text that Python compiles. It shares with the one before the top-level statements that an edit did
not touch: a step in a file of two thousand lines costs as much as the statement that it changes.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from exportdoctor.reduce.source.names import NameUse, names_in
from exportdoctor.reduce.source.tree import Edit, apply_edit, weight

_INVALID = (SyntaxError, ValueError, AttributeError, TypeError, RecursionError)
"""What Python raises for a tree that is no program: a required node is absent, a name does not fit."""


@dataclass(frozen=True)
class StatementFacts:
    """What is known of a top-level statement from its text.

    `depends`: it may be invalid among others though it is valid alone: `global`, `from __future__`.
    """

    text: str
    weight: int
    names: NameUse
    depends: bool


@dataclass(frozen=True, eq=False)
class TopLevelStatement:
    """A top-level statement of one or several versions; no other statement shares its nodes."""

    node: ast.stmt
    facts: StatementFacts

    @cached_property
    def members(self) -> frozenset[ast.AST]:
        """The statement and every node in it."""
        return frozenset(ast.walk(self.node))

    def apply(self, edit: Edit) -> Iterator[TopLevelStatement]:
        """What an edit makes of this statement."""
        if self.members.isdisjoint(edit):
            yield self
        else:
            for node in apply_edit(self.node, edit):
                yield from _parse(ast.unparse(ast.fix_missing_locations(node)))


@dataclass(frozen=True, eq=False)
class SourceVersion:
    """One version of a source, written as `ast.unparse` does."""

    statements: tuple[TopLevelStatement, ...]

    @staticmethod
    def of(text: str) -> SourceVersion | None:
        """The version of `text`, or None where Python does not compile it."""
        try:
            texts = map(ast.unparse, ast.parse(text).body)
            return _require_valid(SourceVersion(tuple(one for text in texts for one in _parse(text))))
        except _INVALID:
            return None

    def apply(self, edit: Edit) -> SourceVersion | None:
        """The version that an edit gives, or None where the result is no valid Python."""
        try:
            return _require_valid(SourceVersion(tuple(new for one in self.statements for new in one.apply(edit))))
        except _INVALID:
            return None

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree, of which an edit names nodes."""
        return ast.Module([one.node for one in self.statements], [])

    @cached_property
    def text(self) -> str:
        """The source, with an empty line on both sides of a definition."""
        return "\n".join(one.facts.text for one in self.statements).replace("\n\n\n", "\n\n").strip("\n")

    @property
    def cost(self) -> tuple[int, int, str]:
        """Weight, then characters, then the text itself; every step of a reduction makes it smaller.

        The weight comes first, so that `x = f(a)` never becomes something longer that merely has a shorter
        name; the text comes last, so that a 7 can become a 2.
        """
        return sum(one.facts.weight for one in self.statements), len(self.text), self.text

    @property
    def undefined(self) -> frozenset[str]:
        """The names that it reads and nowhere binds."""
        return NameUse.all_of(one.facts.names for one in self.statements).undefined


def _parse(text: str) -> Iterator[TopLevelStatement]:
    """The statements of a text, freshly parsed: two equal ones must not share a node."""
    for statement in ast.parse(text).body:
        yield TopLevelStatement(statement, _facts(ast.unparse(statement)))


@lru_cache(maxsize=8192)
def _facts(text: str) -> StatementFacts:
    tree = ast.parse(text)
    _compile(tree)
    spaced = isinstance(tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    layout = f"\n{text}\n" if spaced else text
    return StatementFacts(layout, weight(tree), names_in(text, tree), any(map(_depends, ast.walk(tree))))


def _depends(node: ast.AST) -> bool:
    return isinstance(node, ast.Global) or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _compile(tree: ast.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(tree, "<candidate>", "exec", dont_inherit=True)


def _require_valid(version: SourceVersion) -> SourceVersion:
    """The version, whose statements are valid one by one; raises SyntaxError where they are not together."""
    if any(one.facts.depends for one in version.statements):
        _compile(ast.parse(version.text))
    return version

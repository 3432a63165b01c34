"""One version of a source, and the next one after an edit.

The only place that turns trees into text and text into trees. Invariant: a `Draft` is text that Python
compiles. A draft is made of pieces, one for each top-level statement, and shares those that an edit did not
touch: a step in a file of two thousand lines costs as much as the statement that it changes.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from exportdoctor.reduce.source.names import Names, names_in
from exportdoctor.reduce.source.tree import Edit, resolved, weight

_INVALID = (SyntaxError, ValueError, AttributeError, TypeError, RecursionError)
"""What Python says of a tree that is no program: a required node is absent, a name does not fit."""


@dataclass(frozen=True)
class Facts:
    """What is known of a top-level statement from its text.

    `depends` says that it may be invalid among others though it is valid alone: `global`, `from __future__`.
    """

    text: str
    weight: int
    names: Names
    depends: bool


@dataclass(frozen=True, eq=False)
class Piece:
    """A top-level statement of one or several drafts; no other piece shares its nodes."""

    statement: ast.stmt
    facts: Facts

    @cached_property
    def members(self) -> frozenset[ast.AST]:
        """The statement and every node in it."""
        return frozenset(ast.walk(self.statement))

    def edited(self, edit: Edit) -> Iterator[Piece]:
        """What an edit makes of this piece."""
        if self.members.isdisjoint(edit):
            yield self
        else:
            for statement in resolved(self.statement, edit):
                yield from _pieces(ast.unparse(ast.fix_missing_locations(statement)))


@dataclass(frozen=True, eq=False)
class Draft:
    """One version of a source, written as `ast.unparse` does."""

    pieces: tuple[Piece, ...]

    @staticmethod
    def of(text: str) -> Draft | None:
        """The draft of `text`, or None where Python does not compile it."""
        try:
            statements = map(ast.unparse, ast.parse(text).body)
            return _checked(Draft(tuple(piece for statement in statements for piece in _pieces(statement))))
        except _INVALID:
            return None

    def edited(self, edit: Edit) -> Draft | None:
        """The draft that an edit gives, or None where the result is no valid Python."""
        try:
            return _checked(Draft(tuple(new for piece in self.pieces for new in piece.edited(edit))))
        except _INVALID:
            return None

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree, of which an edit names nodes."""
        return ast.Module([piece.statement for piece in self.pieces], [])

    @cached_property
    def text(self) -> str:
        """The source, with an empty line on both sides of a definition."""
        return "\n".join(piece.facts.text for piece in self.pieces).replace("\n\n\n", "\n\n").strip("\n")

    @property
    def cost(self) -> tuple[int, int, str]:
        """Weight, then characters, then the text itself; every step of a reduction makes it smaller.

        The weight comes first, so that `x = f(a)` never becomes something longer that merely has a shorter
        name; the text comes last, so that a 7 can become a 2.
        """
        return sum(piece.facts.weight for piece in self.pieces), len(self.text), self.text

    @property
    def undefined(self) -> frozenset[str]:
        """The names that it reads and nowhere binds."""
        return Names.all_of(piece.facts.names for piece in self.pieces).undefined


def _pieces(text: str) -> Iterator[Piece]:
    """The pieces of a text, freshly parsed: two equal statements must not share a node."""
    for statement in ast.parse(text).body:
        yield Piece(statement, _facts(ast.unparse(statement)))


@lru_cache(maxsize=8192)
def _facts(text: str) -> Facts:
    tree = ast.parse(text)
    _compile(tree)
    spaced = isinstance(tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    layout = f"\n{text}\n" if spaced else text
    return Facts(layout, weight(tree), names_in(text, tree), any(map(_depends, ast.walk(tree))))


def _depends(node: ast.AST) -> bool:
    return isinstance(node, ast.Global) or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _compile(tree: ast.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(tree, "<candidate>", "exec", dont_inherit=True)


def _checked(draft: Draft) -> Draft:
    """The draft, whose pieces are valid one by one; raises SyntaxError where they are not together."""
    if any(piece.facts.depends for piece in draft.pieces):
        _compile(ast.parse(draft.text))
    return draft

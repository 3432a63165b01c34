"""A Python file as text and syntax tree: its statements by line, and new text in place of some of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from exportdoctor.core.parse_indented import parse_indented

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Splice(NamedTuple):
    """New text between two places of the old one; a place counts UTF-8 bytes from the start of the file."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class LinePlace:
    """A statement, with the statements around it and the function that it stands in."""

    source: SourceText
    function: ast.FunctionDef
    block: list[ast.stmt]
    index: int

    @property
    def statement(self) -> ast.stmt:
        """The statement itself."""
        return self.block[self.index]

    @property
    def following(self) -> ast.stmt | None:
        """The next statement of the same block."""
        return self.block[self.index + 1] if self.index + 1 < len(self.block) else None


class SourceText:
    """A file's text and syntax tree. Raises SyntaxError where it is no Python."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.tree = ast.parse(text)
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """Where a node begins and ends."""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[end_line - 1] + end_column

    def code(self, node: ast.stmt | ast.expr) -> str:
        """A node as the user wrote it, on one line where it is an expression."""
        start, end = self.span(node)
        text = self.data[start:end].decode()
        return " ".join(text.split()) if "\n" in text and isinstance(node, ast.expr) and "#" not in text else text

    def replace(self, changes: Iterable[Splice]) -> str:
        """The text with all changes made."""
        data = self.data
        for change in sorted(changes, reverse=True):
            data = data[: change.start] + change.text.encode() + data[change.end :]
        return data.decode()

    def places(self, line: int) -> Iterator[LinePlace]:
        """The statements whose own code (of an `if` or a loop its head) spans a line, innermost first."""
        for function in ast.walk(self.tree):
            if isinstance(function, ast.FunctionDef):
                yield from self._places_in(function, function, line)

    def _places_in(self, function: ast.FunctionDef, node: ast.AST, line: int) -> Iterator[LinePlace]:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            for index, statement in enumerate(block):
                if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                    continue
                if statement.lineno <= line <= _head_end(statement):
                    yield LinePlace(self, function, block, index)
                yield from self._places_in(function, statement, line)

    def over(self, place: LinePlace, statements: Iterable[ast.stmt], lines: Iterable[str]) -> Splice:
        """These lines, at the statement's indentation, in place of `statements`; with none of those, before it."""
        indent = " " * place.statement.col_offset
        text = f"\n{indent}".join(lines)
        spans = [self.span(one) for one in statements]
        if spans:
            return Splice(min(start for start, _ in spans), max(end for _, end in spans), text)
        start = self.span(place.statement)[0]
        return Splice(start, start, f"{text}\n{indent}")


def _head_end(statement: ast.stmt) -> int:
    body = getattr(statement, "body", None)
    end = statement.end_lineno or statement.lineno
    return max(statement.lineno, body[0].lineno - 1) if isinstance(body, list) and body else end


def changed_function(before: str, after: str) -> ast.FunctionDef | None:
    """The one function of the new text whose code differs; its line numbers are those of the old text's function."""
    old, new = _changed_functions(before, after)
    return ast.increment_lineno(new, old.lineno - new.lineno) if old is not None and new is not None else None


def changed_lambda(before: str, after: str) -> ast.Lambda | None:
    """The innermost lambda in whose body that function differs, and in nothing else; its line numbers are those of the
    old text's lambda."""
    old, new = _innermost_lambda(*_changed_functions(before, after))
    return ast.increment_lineno(new, old.lineno - new.lineno) if old is not None and new is not None else None


def _innermost_lambda(
    old: ast.AST | None, new: ast.AST | None, found: tuple[ast.Lambda | None, ast.Lambda | None] = (None, None)
) -> tuple[ast.Lambda | None, ast.Lambda | None]:
    """Of two trees the lambdas in which all that differs stands; what defaults are is computed outside of theirs."""
    if old is None or new is None or type(old) is not type(new):
        return found
    if isinstance(old, ast.Lambda) and isinstance(new, ast.Lambda):
        if ast.dump(old.args) != ast.dump(new.args):
            return found
        found = old, new
    parts = list(ast.iter_child_nodes(old)), list(ast.iter_child_nodes(new))
    if len(parts[0]) != len(parts[1]):
        return found
    differ = [pair for pair in zip(*parts, strict=True) if ast.dump(pair[0]) != ast.dump(pair[1])]
    return _innermost_lambda(*differ[0], found) if len(differ) == 1 else found


def _changed_functions(before: str, after: str) -> tuple[ast.FunctionDef | None, ast.FunctionDef | None]:
    old, new = _definitions(before), _definitions(after)
    for name, node in new.items():
        if name in old and ast.dump(node) != ast.dump(old[name]):
            inner = [other for other in new if other.startswith(f"{name}.") and other in old
                     and ast.dump(new[other]) != ast.dump(old[other])]  # fmt: skip
            if not inner:
                return old[name], node
    return None, None


def _definitions(text: str) -> dict[str, ast.FunctionDef]:
    """Every function of a text by its qualified name."""
    found: dict[str, ast.FunctionDef] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
                name = f"{prefix}.{child.name}" if prefix else child.name
                if isinstance(child, ast.FunctionDef):
                    found[name] = child
                visit(child, name)
            else:
                visit(child, prefix)

    visit(parse_indented(text), "")
    return found

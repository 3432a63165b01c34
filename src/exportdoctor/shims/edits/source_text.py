"""A Python file as text and syntax tree: its statements by line, and new text in place of some of them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from exportdoctor.core.parse_indented import parse_indented

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ATOMS = (
    *(ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.JoinedStr),
)
"""Expressions that may stand beside any operator as they are."""
_SIMPLE = (
    *(ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Raise, ast.Assert, ast.Delete),
    *(ast.Pass, ast.Break, ast.Continue),
)
_NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


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
        """A node as the user wrote it, on one line and without comments where it is an expression."""
        start, end = self.span(node)
        text = self.data[start:end].decode()
        return joined_lines(text) if "\n" in text and isinstance(node, ast.expr) else text

    def operand(self, node: ast.expr) -> str:
        """An expression as `code`, in parentheses where it could not stand beside an operator or before a dot."""
        is_number = isinstance(node, ast.Constant) and isinstance(node.value, int | float | complex)
        code = self.code(node)
        if isinstance(node, ast.Tuple):  # `(a), b` begins with one, too
            return code if isinstance(ast.parse(f"f{code}", mode="eval").body, ast.Call) else f"({code})"
        return code if isinstance(node, _ATOMS) and not is_number else f"({code})"

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

    def over(self, place: LinePlace, statements: Iterable[ast.stmt], line: str) -> Splice:
        """This line in place of `statements`, of which the first is that of the place."""
        spans = [self.span(one) for one in statements]
        start, end = min(start for start, _ in spans), max(end for _, end in spans)
        if not self._is_elif(start):
            return Splice(start, end, line)
        body = place.statement.body[0]  # type: ignore[attr-defined]
        indent = self._indent(self.span(body)[0])
        return Splice(start, end, f"else: {line}" if indent is None else f"else:\n{indent}{line}")

    def before(self, place: LinePlace, lines: Sequence[str]) -> Splice | None:
        """These lines, simple statements, before that of the place; None before an `elif`, where none can stand."""
        start = self.span(place.statement)[0]
        if self._is_elif(start):
            return None
        indent = self._indent(start)
        if indent is None and not isinstance(place.statement, _SIMPLE):
            return None
        separator = "; " if indent is None else f"\n{indent}"
        return Splice(start, start, separator.join([*lines, ""]))

    def _is_elif(self, start: int) -> bool:
        return re.match(rb"elif\b", self.data[start:]) is not None

    def _indent(self, start: int) -> str | None:
        """What stands before a statement on its line; None where that is other code."""
        begun = self.data[self.data.rfind(b"\n", 0, start) + 1 : start].decode()
        return begun if not begun.strip() else None


def joined_lines(text: str) -> str:
    """The code of an expression over several lines on one, without comments; strings stay as they are."""
    rows = f"({text}\n)".splitlines(keepends=True)
    found: list[str] = []
    row, column = 1, 0
    for token in tokenize.generate_tokens(io.StringIO("".join(rows)).readline):
        if token.type in _NO_CODE:
            continue
        (first, begin), (row_after, end) = token.start, token.end
        found.append(rows[row - 1][column:begin] if first == row else " ")  # of a row all that stands between
        found.append(token.string if first != row_after else rows[first - 1][begin:end])
        row, column = row_after, end
    return "".join(found).strip()[1:-1].strip()


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

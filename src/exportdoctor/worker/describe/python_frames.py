"""Reads Python's frames and tracebacks: whose code a frame runs, its line, and the expression being evaluated."""

from __future__ import annotations

import ast
import contextlib
import dis
import io
import linecache
import re
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any

from exportdoctor.core.failure.frames import TRACER_PACKAGES, is_user_file
from exportdoctor.core.records.outcome import Frame

RAISE = dis.opmap["RAISE_VARARGS"]
_Positions = tuple[int | None, int | None, int | None, int | None]


def is_user_frame(frame: FrameType) -> bool:
    """As `is_user_file`; code made by `exec` has no file, but belongs to the module in whose namespace it runs."""
    path = frame.f_code.co_filename
    if not path.startswith("<"):
        return is_user_file(path)
    owner, file = frame.f_globals.get("__name__", ""), frame.f_globals.get("__file__")
    # proxy_tensor.fake_signature makes `lambda a, b: fn(a, b)` in a namespace that holds `fn` alone
    adapter = frame.f_code.co_name == "<lambda>" and set(frame.f_globals) <= {"fn", "__builtins__"}
    of_dynamo = frame.f_code.co_qualname.startswith("___make_guard_fn")  # checks guards in a namespace of its own
    if path.startswith(("<eval_with_key>", "<frozen")) or adapter or of_dynamo:
        return False
    has_file = isinstance(file, str) and not file.startswith("<")  # a script that is piped in has the file <stdin>
    return is_user_file(file) if has_file else str(owner).partition(".")[0] not in TRACER_PACKAGES


def tracebacks(error: BaseException) -> Iterator[TracebackType]:
    """The links of an exception's traceback, outermost first."""
    link = error.__traceback__
    while link is not None:
        yield link
        link = link.tb_next


def is_raised_by_user(error: BaseException) -> bool:
    """Whether a `raise` or an `assert` of user code made it."""
    last = next(reversed(tuple(tracebacks(error))), None)
    if last is None or not is_user_frame(last.tb_frame):
        return False
    code = last.tb_frame.f_code.co_code
    return 0 <= last.tb_lasti < len(code) and code[last.tb_lasti] == RAISE


def python_frame(frame: FrameType, link: TracebackType, module: str | None) -> Frame:
    """The frame at one link of a traceback."""
    code = frame.f_code
    user = is_user_frame(frame)
    return Frame(
        file=code.co_filename,
        line=link.tb_lineno,
        function=code.co_qualname,
        source=source_line(code.co_filename, link.tb_lineno),
        module=module,
        user=user,
        expression=expression_at(code, link.tb_lasti) if user else None,
    )


def source_line(path: str, line: int) -> str:
    """The text of that line, without its indentation; empty where there is no source."""
    return linecache.getline(path, line).strip()


def segment(path: str, positions: Any) -> str | None:
    """The source text between two positions, (line, end line, column, end column), columns in UTF-8 bytes."""
    start, end, column, end_column = tuple(positions)
    if None in (start, end, column, end_column):
        return None
    lines = [linecache.getline(path, number).encode() for number in range(start, end + 1)]
    if not lines or not lines[0]:
        return None
    lines[-1] = lines[-1][:end_column]
    lines[0] = b" " * column + lines[0][column:]
    text = _without_comments(textwrap.dedent(b"".join(lines).decode(errors="replace")))
    return " ".join(line.strip() for line in (_asked_by_statement(text) or text).splitlines())[:400] or None


def _without_comments(text: str) -> str:
    """The text as it can be joined to one line."""
    if "#" not in text:
        return text
    lines = text.splitlines()
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    return "\n".join(lines)


def _asked_by_statement(text: str) -> str | None:
    """What a whole `if` or `while` asks, or a whole `for` goes over: to Python 3.11 the statement does it."""
    if not re.match(r"(?:if|elif|while|for)\b", text):
        return None
    text = text.removeprefix("el")
    try:
        (node,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    asked = node.test if isinstance(node, ast.If | ast.While) else node.iter if isinstance(node, ast.For) else None
    return ast.get_source_segment(text, asked) if asked is not None else None


def expression_at(code: CodeType, last_instruction: int) -> str | None:
    """The expression that this instruction evaluates; None where there is no source."""
    positions = list(code.co_positions())
    index = last_instruction // 2
    if not 0 <= index < len(positions):
        return None
    place, path = _tested_at(code, positions, index), code.co_filename
    if _fit(path, positions):
        return _asked_by_case(path, place) or segment(path, place)
    found, is_alone = _statement_at(path, place[0])
    return segment(path, found) if is_alone else source_line(path, place[0] or 0) or None


_WHOLE_PATTERNS = (ast.MatchValue, ast.MatchOr, ast.MatchAs)
"""Patterns whose parts are compared with the whole subject."""


def _asked_by_case(path: str, place: _Positions) -> str | None:
    """What a pattern of a `match` compares, whose position is that of the pattern: its subject, with a plain value."""
    line, _, column, _ = place
    if line is None or column is None or not re.match(r"\s*case\b", linecache.getline(path, line)):
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return None
    cases = [(one.subject, case) for one in ast.walk(tree) if isinstance(one, ast.Match) for case in one.cases]
    for subject, case in cases:
        inside = [one for one in ast.walk(case.pattern) if isinstance(one, ast.pattern)]
        if there := [one for one in inside if (one.lineno, one.col_offset) == (line, column)]:
            found = there[-1]  # the innermost
            asked, of_all = ast.unparse(subject), all(isinstance(one, _WHOLE_PATTERNS) for one in inside)
            if of_all and isinstance(found, ast.MatchValue):
                return f"{asked} == {ast.unparse(found.value)}"
            return f"match {asked}: case {ast.unparse(case.pattern)}"
    return None


def _tested_at(code: CodeType, positions: Sequence[_Positions], index: int) -> _Positions:
    """The instruction's position; of a jump that says another place than the value which it tests, this value's.

    Python 3.11 gives the last jump of `a is b and c` the position of `a is b`.
    """
    place, before = positions[index], index - 1
    while before > 0 and dis.opname[code.co_code[2 * before]] == "CACHE":
        before -= 1
    if "JUMP" not in dis.opname[code.co_code[2 * index]] or "IF" not in dis.opname[code.co_code[2 * index]]:
        return place
    value = positions[before] if before >= 0 else place
    if None in (*place, *value):
        return place
    start, end = (place[0], place[2]), (place[1], place[3])
    covers = start <= (value[0], value[2]) and (value[1], value[3]) <= end  # type: ignore[operator]
    return place if covers else value


def _fit(path: str, positions: Sequence[_Positions]) -> bool:
    """Whether these are positions in the file: those of rewritten code may be in another text, without indentation."""
    for line in {line for line, *_ in positions if line is not None}:
        text = linecache.getline(path, line).encode()
        indent = len(text) - len(text.lstrip())
        if any(column < indent for start, _, column, _ in positions if start == line and column):
            return False
    return True


def _statement_at(path: str, line: int | None) -> tuple[_Positions, bool]:
    """The position of the whole statement on a line, of an `if` or a `while` its condition, and whether it is the
    only one there: of an `if` with its body on one line the line does not say which."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return (None, None, None, None), True
    around = [one for one in ast.walk(tree) if isinstance(one, ast.stmt) and _holds(one, line or 0)]
    found = max(around, key=lambda one: (one.lineno, one.col_offset), default=None)
    if found is None:
        return (None, None, None, None), True
    is_alone = sum(one.lineno == found.lineno for one in around) == 1
    node = found.test if isinstance(found, ast.If | ast.While) else found
    body = getattr(found, "body", None)
    if body and node is found:  # its head alone
        end = max(found.lineno, body[0].lineno - 1)
        return (found.lineno, end, found.col_offset, len(linecache.getline(path, end).rstrip().encode())), is_alone
    return (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset), is_alone


def _holds(one: ast.stmt, line: int) -> bool:
    return one.lineno <= line <= (one.end_lineno or one.lineno)

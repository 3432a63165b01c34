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
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

from exportdoctor.core.failure.frames import TRACER_PACKAGES, is_user_file
from exportdoctor.core.records.outcome import Frame

RAISE = dis.opmap["RAISE_VARARGS"]


def is_user_frame(frame: FrameType) -> bool:
    """As `is_user_file`; code made by `exec` has no file, but belongs to the module in whose namespace it runs."""
    path = frame.f_code.co_filename
    if not path.startswith("<"):
        return is_user_file(path)
    owner, file = frame.f_globals.get("__name__", ""), frame.f_globals.get("__file__")
    # proxy_tensor.fake_signature makes `lambda a, b: fn(a, b)` in a namespace that holds `fn` alone
    adapter = frame.f_code.co_name == "<lambda>" and set(frame.f_globals) <= {"fn", "__builtins__"}
    if path.startswith(("<eval_with_key>", "<frozen")) or adapter:
        return False
    return is_user_file(file) if isinstance(file, str) else str(owner).partition(".")[0] not in TRACER_PACKAGES


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
        expression=_expression(code, link.tb_lasti) if user else None,
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
    return " ".join(line.strip() for line in (_condition(text) or text).splitlines())[:400] or None


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


def _condition(text: str) -> str | None:
    """The condition of a whole `if` or `while`: to Python 3.11, one over several lines is asked by the statement."""
    if not re.match(r"(?:if|elif|while)\b", text):
        return None
    text = text.removeprefix("el")
    try:
        (node,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    return ast.get_source_segment(text, node.test) if isinstance(node, ast.If | ast.While) else None


def _expression(code: CodeType, last_instruction: int) -> str | None:
    positions = list(code.co_positions())
    index = last_instruction // 2
    return segment(code.co_filename, positions[index]) if 0 <= index < len(positions) else None

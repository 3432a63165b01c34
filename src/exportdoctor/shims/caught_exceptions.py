"""Whether an exception may be caught before it leaves the model: read from the source of the functions on the stack."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

Line = tuple[str, int]
"""A file, and a number of one of its lines."""

_ENTRANCES = ("export", "_export", "onnx", "jit")
"""Folders of torch from which the model is called."""
_ENDS_A_LOOP = frozenset({"__getitem__", "__len__", "__length_hint__"})
"""Methods that Python calls for a loop or a list, which an IndexError or a TypeError of theirs ends in silence."""


def find_catcher(stack: Iterable[Line]) -> str:
    """Where an exception raised on the innermost of these lines may be caught, as `file:line`; empty if nowhere.

    The innermost comes first, and the model ends where torch called it. torch's own functions let exceptions pass.
    """
    import torch

    folder = Path(torch.__file__).parent
    for name, line in stack:
        file = Path(name)
        if any(file.is_relative_to(folder / entrance) for entrance in _ENTRANCES):
            return ""
        if not file.is_relative_to(folder) and (caught := catching_line(name, line) or _method_for_loops(name, line)):
            return f"{file.name}:{caught}"
    return ""


def stack_lines(frame: FrameType | None, ours: object) -> Iterator[Line]:
    """The lines of the stack from `frame` outwards, but for functions whose globals are `ours` and exportdoctor's."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if frame.f_globals is not ours and name.partition(".")[0] != "exportdoctor":
            yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def catching_line(file: str, line: int) -> int:
    """The line of a `try` or `with` around `line`, in its function, that may stop an exception; 0 if there is none."""
    tree = _tree_of_file(file)
    if tree is None:
        return line  # code without a source may catch anything
    around = _nodes_around(tree, line)
    functions = [node.lineno for node in around if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in around:
        if isinstance(node, ast.stmt) and node.lineno >= max(functions, default=0) and _stops(node, line):
            return node.lineno
    return 0


def _method_for_loops(file: str, line: int) -> int:
    """The first line of the function around `line`, if it is a method that ends loops; else 0."""
    tree = _tree_of_file(file)
    functions = [node for node in _nodes_around(tree, line) if isinstance(node, ast.FunctionDef)] if tree else []
    innermost = max(functions, key=lambda node: node.lineno, default=None)
    return innermost.lineno if innermost is not None and innermost.name in _ENDS_A_LOOP else 0


def _nodes_around(tree: ast.Module, line: int) -> list[ast.AST]:
    return [node for node in ast.walk(tree) if _first_line(node) <= line <= (getattr(node, "end_lineno", 0) or 0)]


def _first_line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0) or 10**9


@functools.lru_cache(maxsize=64)
def _tree_of_file(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _stops(node: ast.stmt, line: int) -> bool:
    """Whether an exception from `line` of the statement's body may end there."""
    if not isinstance(node, ast.Try | ast.TryStar | ast.With | ast.AsyncWith):
        return False
    if not node.body[0].lineno <= line <= (node.body[-1].end_lineno or line):
        return False
    if isinstance(node, ast.With | ast.AsyncWith):
        return not all(_lets_pass(ast.unparse(item.context_expr)) for item in node.items)
    caught = any(not isinstance(handler.body[-1], ast.Raise) or _leaves(handler.body) for handler in node.handlers)
    return caught or _leaves(node.finalbody)


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether there is another way out than its end or an exception."""
    leaves = (ast.Return, ast.Break, ast.Continue)
    return any(isinstance(node, leaves) for statement in body for node in ast.walk(statement))


def _lets_pass(context: str) -> bool:
    """Whether it is a context of torch, or none. Another may stop an exception."""
    return context.startswith("torch.") or context.partition("(")[0].rpartition(".")[2] == "nullcontext"

"""Whether a call may be made by itself: what it is given and reads is no work of the forward around it."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

from exportdoctor.core.parse_indented import parse_indented

_PLAIN = int | float | bool | str | None
_SETTERS = frozenset({"setattr", "delattr", "vars", "globals", "__dict__", "__setattr__", "register_buffer"})
"""By these a name is set that the code need not say."""

CHANGES = frozenset({
    "append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "popitem", "add", "discard",
})  # fmt: skip
"""Methods that change a list, a dict or a set."""

_CHANGES_BESIDE = frozenset({"sort", "reverse", "appendleft", "popleft", "extendleft", "rotate", "move_to_end"})
"""Those that change a list or a deque, and are also methods of what they do not change."""


def fixed_arguments(frame: FrameType, given: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The plain arguments of the call that runs in `frame` which are written as a constant or as an attribute of the
    module that calls, or are left to their defaults, each with the names of the attributes.

    Others may be the result of a size or of a read of a tensor.
    """
    caller, code = frame.f_back, frame.f_code
    plain = [name for name, value in given.items() if isinstance(value, _PLAIN)]
    site = _call_at(caller.f_code, caller.f_lasti) if caller is not None and plain else None
    if site is None or caller is None:
        return {}
    positional = code.co_varnames[: code.co_argcount]
    bound = code.co_argcount > 0 and isinstance(site.func, ast.Attribute) and _is_module(given.get(positional[0]))
    names = positional[1:] if bound else positional
    if any(isinstance(one, ast.Starred) for one in site.args) or any(one.arg is None for one in site.keywords):
        return {}
    written = dict(zip(names, site.args, strict=False)) | {one.arg: one.value for one in site.keywords if one.arg}
    found = {name: _attributes_in(written.get(name), given[name], caller) for name in plain}
    return {name: attributes for name, attributes in found.items() if attributes is not None}


def _attributes_in(node: ast.expr | None, value: Any, caller: FrameType) -> frozenset[str] | None:
    """The attributes in an expression of the caller that is one of the module whose method it is, or a constant;
    `None` for any other expression."""
    if node is None or isinstance(node, ast.Constant):
        return frozenset() if node is None or node.value == value else None
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    code = caller.f_code
    if not (names and isinstance(node, ast.Name) and code.co_argcount and node.id == code.co_varnames[0]):
        return None
    holder = caller.f_locals.get(node.id)
    if not _is_module(holder):
        return None
    for name in reversed(names):
        if isinstance(inspect.getattr_static(type(holder), name, None), property):
            return None
        holder = getattr(holder, name, None)
    return frozenset(names) if type(holder) is type(value) and holder == value else None


def _is_module(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)


@functools.lru_cache(maxsize=4096)
def _call_at(code: CodeType, instruction: int) -> ast.Call | None:
    """The call in the code's source that this instruction makes."""
    positions = list(code.co_positions())[instruction // 2]
    tree = _tree_of(code)
    if tree is None or None in positions:
        return None
    first, last, start, end = positions
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == (first, last, start, end)
    ]
    return found[0] if len(found) == 1 else None


def statement_at(frame: FrameType) -> ast.stmt | None:
    """The innermost statement that the frame runs; `None` where there is no source."""
    tree, line = _tree_of(frame.f_code), frame.f_lineno
    if tree is None:
        return None
    statements = (one for one in ast.walk(tree) if isinstance(one, ast.stmt))
    around = [one for one in statements if one.lineno <= line <= (one.end_lineno or one.lineno)]
    return max(around, key=lambda one: one.lineno, default=None)


@functools.lru_cache(maxsize=4096)
def _tree_of(code: CodeType) -> ast.AST | None:
    """The syntax tree of some code with the places of its file; `None` where there is no source."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = parse_indented("".join(lines))
    except (OSError, TypeError, SyntaxError):
        return None
    return ast.increment_lineno(tree, first - 1)


def names_set(codes: Iterable[CodeType]) -> frozenset[str] | None:
    """The attributes and globals that the codes set, or change the contents of; `None` where that is not known."""
    found = set[str]()
    for code in dict.fromkeys(codes):
        if code.co_name.startswith("<"):
            continue  # a comprehension is part of the function around it, and a lambda sets nothing by itself
        names = _names_set_by(code)
        if names is None:
            return None
        found |= names
    return frozenset(found)


@functools.lru_cache(maxsize=4096)
def _names_set_by(code: CodeType) -> frozenset[str] | None:
    tree = _tree_of(code)
    if tree is None or _SETTERS & names_read([code]):
        return None
    outer = {name for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    found = set(outer)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            found |= _names_of(node.value, code)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _changes(node.func.attr):
            found |= _names_of(node.func.value, code)
    return frozenset(found)


def _changes(method: str) -> bool:
    """Whether a method of that name may change what it is called on; those of tensors that write end with `_`."""
    return method in CHANGES or method in _CHANGES_BESIDE or (method.endswith("_") and not method.endswith("__"))


def _names_of(node: ast.expr, code: CodeType) -> set[str]:
    """The attributes in an expression, and the globals."""
    inside = list(ast.walk(node))
    names = {one.id for one in inside if isinstance(one, ast.Name) and one.id in code.co_names}
    return names | {one.attr for one in inside if isinstance(one, ast.Attribute)}


def names_read(codes: Iterable[CodeType]) -> frozenset[str]:
    """The attributes and globals that the codes name, and what they close over."""
    return frozenset(
        name for code in codes for inner in _with_inner(code) for name in (*inner.co_names, *inner.co_freevars)
    )


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)

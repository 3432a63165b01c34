"""What Python's code asks of a number besides its value: its class, and its text.

While a program is traced a symbolic number has the class of Python's own. Its text is that of a number, as in the key
of a table, `f"{height}x{width}"`: it fixes the number, as `int` does. That of a message is the symbol.
"""

from __future__ import annotations

import ast
import builtins
import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.core.patch_attribute import patch_attribute, patch_item
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.rules.code.call_sites import statement_at
from exportdoctor.shims.rules.code.code_swap import user_functions
from exportdoctor.shims.rules.code.pure_callees import only_computes


@only_computes
def is_instance(value: Any, kinds: Any) -> bool:
    """As `isinstance`; a symbolic number is also what Python's own number would be."""
    import torch

    if builtins.isinstance(value, kinds):
        return True
    numbers: dict[type[Any], Any] = {torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: False}
    return type(value) in numbers and builtins.isinstance(numbers[type(value)], kinds)


def _asks_for_kind(code: CodeType) -> bool:
    return "isinstance" in code.co_names


def _with_text(plain: Callable[[Any], str], kind: type[Any]) -> Callable[[Any], str]:
    """How a symbolic number is written, `plain` being how torch does and `kind` Python's own class."""

    def text_of(number: Any) -> str:
        frame = sys._getframe(1)
        if not is_user_file(frame.f_code.co_filename) or is_in_message(frame):
            return plain(number)
        return str(kind(number))

    return text_of


def is_in_message(frame: FrameType) -> bool:
    """Whether nothing but a message can be made of what is computed there: the statement raises, asserts, or calls a
    function and does not use its result."""
    if frame.f_code.co_name == "<lambda>":
        return False  # the statement around it makes it, and does not run it
    found = statement_at(frame)
    return isinstance(found, ast.Raise | ast.Assert) or (
        isinstance(found, ast.Expr) and isinstance(found.value, ast.Call)
    )


def asks_for_type(code: CodeType) -> bool:
    """Whether it may ask by `type` for that of a number, which is int in eager and may be torch.SymInt in an export.

    An `__init__` has run before a shim holds.
    """
    return code.co_name != "__init__" and "type" in _global_names(code)


def _global_names(code: CodeType) -> Iterator[str]:
    """The names that it and the functions inside read of the module or the builtins."""
    yield from (one.argval for one in dis.get_instructions(code) if one.opname in {"LOAD_GLOBAL", "LOAD_NAME"})
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _global_names(inner)


@contextmanager
def symbolic_numbers(call: ExportCall) -> Iterator[None]:
    """Within it the user's code that asks for the class or the text of a symbolic number is told what it is told in
    eager."""
    import torch

    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    namespaces = {id(one.__globals__): one.__globals__ for one in user_functions(call, _asks_for_kind)}
    with ExitStack() as stack:
        for symbolic, kind in kinds.items():
            stack.enter_context(patch_attribute(symbolic, "__repr__", _with_text(symbolic.__repr__, kind)))
        for names in namespaces.values():
            if "isinstance" not in names:
                stack.enter_context(patch_item(names, "isinstance", is_instance))
        yield

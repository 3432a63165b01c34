"""`isinstance(size, int)` while a program is traced: a symbolic number is what it is in eager, a number of Python's."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any

from exportdoctor.core.patch_attribute import patch_item
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.rules.code_swap import user_functions


def is_instance(value: Any, kinds: Any) -> bool:
    """As `isinstance`; a symbolic number is also what Python's own number would be."""
    import torch

    if builtins.isinstance(value, kinds):
        return True
    numbers: dict[type[Any], Any] = {torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: False}
    return type(value) in numbers and builtins.isinstance(numbers[type(value)], kinds)


def _asks_for_kind(code: CodeType) -> bool:
    return "isinstance" in code.co_names


@contextmanager
def symbolic_numbers(call: ExportCall) -> Iterator[None]:
    """Within it the user's code that asks for the class of a symbolic number is told what it is told in eager."""
    namespaces = {id(one.__globals__): one.__globals__ for one in user_functions(call, _asks_for_kind)}
    with ExitStack() as stack:
        for names in namespaces.values():
            if "isinstance" not in names:
                stack.enter_context(patch_item(names, "isinstance", is_instance))
        yield

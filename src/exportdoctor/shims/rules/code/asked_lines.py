"""Where Python asks a tensor for its value, seen by running forward in eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.rules.code.code_swap import (
    attached_functions,
    function_around,
    function_inside,
    function_of,
    inside_decorators,
    owners_of,
    replace_inside,
)
from exportdoctor.shims.rules.code.torch_functions import VALUE_READS
from exportdoctor.targets.eager import run_calls

_COMPREHENSIONS = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
"""Functions that Python makes of a part of another one, which calls them at once."""


def code_of_asking(
    call: ExportCall, code_of: Callable[[FunctionType, frozenset[int], tuple[Any, ...]], CodeType | None]
) -> dict[FunctionType, CodeType]:
    """The new code of the functions in which forward asks a tensor for its value: what `code_of` gives for one, the
    lines at which it asks, and the modules whose method it is. A function that another one makes at each call changes
    the code of that."""
    changes: dict[FunctionType, CodeType] = {}
    for function, lines in sorted(asked_lines(call).items(), key=_depth):  # what is around one would bring it back
        code = code_of(function, lines, owners_of(call, function))
        changed = function_around(call, function)
        if code is not None and changed is not None:
            before = changes.get(changed, changed.__code__)
            changes[changed] = code if changed is function else replace_inside(before, function.__code__, code)
    return changes


def _depth(asked: tuple[FunctionType, object]) -> int:
    """In how many functions this one is made."""
    return asked[0].__code__.co_qualname.count("<locals>")


def asked_lines(call: ExportCall) -> dict[FunctionType, frozenset[int]]:
    """The lines of each function of the user's at which forward asks a tensor for its value, on all inputs; one that is
    made anew at each call is as `function_inside` makes it."""
    from torch.overrides import TorchFunctionMode

    classes = list(dict.fromkeys(kind for module in call.module.modules() for kind in type(module).__mro__))
    attached = attached_functions(call.module)
    found: dict[FunctionType, set[int]] = {}
    inside: dict[CodeType, FunctionType] = {}

    class Asking(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in VALUE_READS:
                frame: Any = sys._getframe(1)
                while frame is not None and not is_user_file(frame.f_code.co_filename):
                    frame = frame.f_back
                while frame is not None and frame.f_code.co_name in _COMPREHENSIONS:
                    frame = frame.f_back
                if frame is None:
                    return func(*args, **(kwargs or {}))
                code = frame.f_code
                function = function_of(code, frame.f_globals, frame.f_locals, classes, attached)
                if function is None:
                    function = inside.setdefault(code, function_inside(code, frame.f_globals))
                if function is not None:
                    found.setdefault(function, set()).add(frame.f_lineno)
            return func(*args, **(kwargs or {}))

    run_known(call, Asking)
    for function, lines in list(found.items()):  # several may have one code
        for one in attached:
            alike = inside_decorators(one, lambda code, wanted=function.__code__: code is wanted)  # type: ignore[misc]
            found.update((other, lines) for other in alike)
    return {function: frozenset(lines) for function, lines in found.items()}


def run_known(call: ExportCall, around: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
    """Eager, on all inputs that are known. Without values it ends where the first of them is asked for."""
    for inputs in ((call.args, call.kwargs), *call.more_inputs):
        with suppress(Exception), around():
            run_calls(call.module, [inputs])

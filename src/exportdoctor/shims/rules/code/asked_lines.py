"""Where Python asks a tensor for its value, or for a size that depends on values, seen by running forward in eager."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.shims.export_call import ExportCall, Inputs
from exportdoctor.shims.rules.code.code_swap import (
    attached_functions,
    definition_of,
    function_around,
    function_inside,
    function_of,
    inside_decorators,
    owners_of,
    replace_inside,
)
from exportdoctor.shims.rules.code.followed_numbers import FollowedNumbers
from exportdoctor.shims.rules.code.torch_functions import (
    SIZED_AS_FIRST,
    SIZED_BY_VALUES,
    VALUE_READS,
    gives_size,
    has_bounds,
    tensors_of,
    writes_first,
)
from exportdoctor.targets.eager import run_calls

_COMPREHENSIONS = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
"""Functions that Python makes of a part of another one, which calls them at once."""


def code_of_asking(
    call: ExportCall,
    code_of: Callable[[FunctionType, frozenset[int], tuple[Any, ...]], CodeType | None],
    *,
    sizes: SizedByValues | None = None,
) -> dict[FunctionType, CodeType]:
    """The new code of the functions in which forward asks a tensor for its value: what `code_of` gives for one, the
    lines at which it asks, and the modules whose method it is. A function that another one makes at each call changes
    the code of that. With `sizes` those count, too, that ask for a size that may depend on values, or decide by a
    number that was read elsewhere."""
    changes: dict[FunctionType, CodeType] = {}
    for function, lines in sorted(
        asked_lines(call, sizes=sizes).items(), key=_depth
    ):  # what is around one would bring it back
        code = code_of(function, lines, owners_of(call, function))
        changed = function_around(call, function)
        if code is not None and changed is not None:
            before = changes.get(changed, changed.__code__)
            changes[changed] = code if changed is function else replace_inside(before, function.__code__, code)
    return changes


def _depth(asked: tuple[FunctionType, object]) -> int:
    """In how many functions this one is made."""
    return asked[0].__code__.co_qualname.count("<locals>")


def asked_lines(call: ExportCall, *, sizes: SizedByValues | None = None) -> dict[FunctionType, frozenset[int]]:
    """The lines of each function of the user's at which forward asks a tensor for its value, or with `sizes` for a size
    that may depend on values, on all inputs, and those of conditions on such a number or size; one that is made anew at
    each call is as `function_inside` makes it."""
    from torch.overrides import TorchFunctionMode

    classes = list(dict.fromkeys(kind for module in call.module.modules() for kind in type(module).__mro__))
    attached = attached_functions(call.module)
    found: dict[FunctionType, set[int]] = {}
    inside: dict[CodeType, FunctionType] = {}

    class Asking(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in VALUE_READS:  # before it fails without values
                self.note(sys._getframe(1))
            made = func(*args, **(kwargs or {}))
            if sizes is None:
                return made
            if asked := sizes.is_asked(func, args, kwargs or {}, made):
                self.note(sys._getframe(1))
            return numbers.follow(made) if asked or getattr(func, "__name__", "") == "item" else made

        @staticmethod
        def note(frame: Any, *, compares: bool = False) -> None:
            """The line of the user's that asks. One that compares a number counts where that is a condition."""
            while frame is not None and not is_user_file(frame.f_code.co_filename):
                frame = frame.f_back
            while frame is not None and frame.f_code.co_name in _COMPREHENSIONS:
                frame = frame.f_back
            if frame is None:
                return
            code = frame.f_code
            function = function_of(code, frame.f_globals, frame.f_locals, classes, attached)
            if function is None:
                function = inside.setdefault(code, function_inside(code, frame.f_globals))
            if function is not None and (not compares or frame.f_lineno in deciding(function)):
                found.setdefault(function, set()).add(frame.f_lineno)

    deciding = functools.cache(_lines_of_conditions)
    numbers = FollowedNumbers(lambda frame: Asking.note(frame, compares=True))
    run_known(call, Asking)
    for function, lines in list(found.items()):  # several may have one code
        for one in attached:
            alike = inside_decorators(one, lambda code, wanted=function.__code__: code is wanted)  # type: ignore[misc]
            found.update((other, lines) for other in alike)
    return {function: frozenset(lines) for function, lines in found.items()}


def _lines_of_conditions(function: FunctionType) -> frozenset[int]:
    """Those of the conditions of its branches, and those on which these begin."""
    node = definition_of(function)
    branches = [one for one in ast.walk(node) if isinstance(one, ast.If | ast.IfExp)] if node is not None else []
    lines = {line for one in branches for line in range(one.test.lineno, (one.test.end_lineno or 0) + 1)}
    return frozenset(lines | {one.lineno for one in branches})


class SizedByValues:
    """Follows the tensors whose sizes may depend on values through the functions of torch that an eager run calls. Of
    what is made of one, some sizes may not: that is not told apart. `asked` says whether a size was asked for."""

    def __init__(self) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self.tensors: Any = WeakIdKeyDictionary()
        self.asked = False

    def is_asked(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> bool:
        """Whether a function that was called gives Python a size of one of them."""
        name, given = getattr(func, "__name__", ""), tensors_of((args, kwargs))
        base = name if name.endswith("__") else name.removesuffix("_")
        sizing = given[:1] if base in SIZED_AS_FIRST or writes_first(name) else given
        by_values = _is_sized_by_values(base, args, kwargs)
        if not by_values and not any(one in self.tensors for one in sizing):
            return False
        for tensor in tensors_of(made):
            if tensor.dim():
                self.tensors[tensor] = True
        is_asked = not by_values and gives_size(func, name, made)
        self.asked |= is_asked
        return is_asked


def _is_sized_by_values(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the sizes of what a function of that name gives depend on values of what it is given."""
    import torch

    if name == "__getitem__":
        masks = any(one.dtype in (torch.bool, torch.uint8) for one in tensors_of(args[1:2]))
        return masks or has_bounds(args[1])
    if name == "repeat_interleave":
        return isinstance(kwargs.get("repeats", (*args, None)[1]), torch.Tensor) or len(args) + len(kwargs) == 1
    return name in SIZED_BY_VALUES or (name == "where" and len(args) + len(kwargs) == 1)


def run_known(
    call: ExportCall,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    more: Iterable[Inputs] = (),
) -> None:
    """Eager, on all inputs that are known, and `more`. Without values it ends where the first of them is asked for."""
    for inputs in chain([(call.args, call.kwargs)], call.more_inputs, more):
        with suppress(Exception), around():
            run_calls(call.module, [inputs])

"""Hoisted calls are answered by something else for a while, wherever they are made."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from exportdoctor.shims.record import NotApplicable
from exportdoctor.shims.rules.code.code_swap import compile_for, definition_of, swap_code
from exportdoctor.shims.rules.hoisting.hoisted_results import HoistedCall, global_names

_NUMBERS = itertools.count()
_ANY_NAME = "_hoisted"
_DELEGATES: WeakKeyDictionary[FunctionType, tuple[CodeType, CodeType]] = WeakKeyDictionary()
"""Of functions: their code, and the code that stood in its place, in which the global is `_ANY_NAME`."""


@contextmanager
def stand_in(
    calls: Sequence[HoistedCall], answer: Callable[[HoistedCall, Callable[[], Any]], Any]
) -> Iterator[Callable[[], None]]:
    """Within it `answer` gives the result of the hoisted calls, whose arguments are `compute.given`; yields what starts
    the count anew.

    Calls inside a hoisted one are not counted, since the program does not make them.
    """
    outlines = [one.outline for one in calls if one.outline is not None]
    changes: dict[FunctionType, Any] = {one.owner: one.code for one in outlines}
    names: dict[str, Any] = {}
    depth = [0]
    for function in dict.fromkeys(one.function for one in calls):
        wanted = {one.number: one for one in calls if one.function is function}
        name = f"_hoisted_{next(_NUMBERS)}"
        code = _delegate_code(function, name)
        if code is None:
            raise NotApplicable(f"{function.__qualname__} has no source that can be replaced")
        original = _copy_of(function)
        names[name] = _count_calls(wanted, original, answer, depth)
        changes[function] = code

    def start() -> None:
        for one in names.values():
            one.count = 0
        depth[0] = 0

    with swap_code(changes, {**global_names(outlines), **names}):
        yield start


def _count_calls(wanted: Mapping[int, HoistedCall], original: FunctionType, answer: Any, depth: list[int]) -> Any:
    def answer_call(*args: Any, **kwargs: Any) -> Any:
        if depth[0]:
            return original(*args, **kwargs)
        number = answer_call.count  # type: ignore[attr-defined]
        answer_call.count += 1  # type: ignore[attr-defined]
        if number not in wanted:
            return original(*args, **kwargs)

        def compute() -> Any:
            depth[0] += 1
            try:
                return original(*args, **kwargs)
            finally:
                depth[0] -= 1

        compute.given = (args, kwargs)  # type: ignore[attr-defined]
        return answer(wanted[number], compute)

    answer_call.count = 0  # type: ignore[attr-defined]
    return answer_call


def _copy_of(function: FunctionType) -> FunctionType:
    """The function as it is now, whatever code it gets later."""
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _delegate_code(function: FunctionType, name: str) -> CodeType | None:
    """Code that hands the arguments on to the global `name`; made once of the code that the function has."""
    of, code = _DELEGATES.get(function, (None, None))
    if code is None or of is not function.__code__:
        node = _delegate(function, _ANY_NAME)
        code = compile_for(function, node) if node is not None else None
        if code is None:
            return None
        _DELEGATES[function] = function.__code__, code
    return code.replace(co_names=tuple(name if one == _ANY_NAME else one for one in code.co_names))


def _delegate(function: FunctionType, name: str) -> ast.FunctionDef | None:
    """The definition with a body that hands its arguments on to the global `name`."""
    node = definition_of(function)
    if node is None:
        return None
    given = node.args
    args: list[ast.expr] = [ast.Name(one.arg, ast.Load()) for one in (*given.posonlyargs, *given.args)]
    args += [ast.Starred(ast.Name(given.vararg.arg, ast.Load()), ast.Load())] if given.vararg else []
    keywords = [ast.keyword(one.arg, ast.Name(one.arg, ast.Load())) for one in given.kwonlyargs]
    keywords += [ast.keyword(None, ast.Name(given.kwarg.arg, ast.Load()))] if given.kwarg else []
    closed = ast.Tuple([ast.Name(one, ast.Load()) for one in function.__code__.co_freevars], ast.Load())
    node.body = [
        ast.If(ast.Constant(False), [ast.Expr(closed)], []),  # so that it closes over the same names
        ast.Return(ast.Call(ast.Name(name, ast.Load()), args, keywords)),
    ]
    return node

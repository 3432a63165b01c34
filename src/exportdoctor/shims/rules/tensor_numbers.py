"""`int(tensor)` needs a number that a traced tensor does not have. Here it is that of `item`, which may be symbolic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.eager_run import run_copy
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code_swap import all_code, user_functions
from exportdoctor.shims.rules.number_types import asks_for_type, symbolic_numbers
from exportdoctor.shims.rules.whole_numbers import symbolic_int
from exportdoctor.shims.searches import search_once

_READS = frozenset({"item", "tolist", "__int__"})


def _calls_int(code: CodeType) -> bool:
    return "int" in code.co_names and code.co_name != "__init__"


def _find_namespaces(call: ExportCall) -> list[dict[str, Any]]:
    """The globals of the code that calls `int`: of functions that are found from the modules on, and of those that read
    a tensor in an eager run. None of a file in which a function that calls `int` asks for types of numbers."""
    namespaces: dict[int, dict[str, Any]] = {}
    asking: set[int] = set()

    def note(code: CodeType, names: dict[str, Any]) -> None:
        namespaces[id(names)] = names
        if asks_for_type(code):
            asking.add(id(names))

    for function in user_functions(call, _calls_int):
        note(function.__code__, function.__globals__)
    for frame in _reading_frames(call):
        note(frame.f_code, frame.f_globals)
    return [names for place, names in namespaces.items() if place not in asking and "int" not in names]


def _reading_frames(call: ExportCall) -> list[FrameType]:
    """The frames of the user's code that calls `int` from which an eager run reads tensors, as far as that gets."""
    import torch
    from torch.overrides import TorchFunctionMode

    found: list[FrameType] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and not is_user_file(frame.f_code.co_filename):
                frame = frame.f_back
            reads = getattr(func, "__name__", "") in _READS and frame is not None
            if reads and frame is not None and any(map(_calls_int, all_code(frame.f_code))):
                found.append(frame)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), suppress(Exception), Watch():
        run_copy(call)
    return found


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    found = search_once("int-as-item", call.module, lambda: _find_namespaces(call))
    if not found:
        raise NotApplicable("no function calls `int`, or one that does asks for types of numbers")
    with symbolic_int(found, fractions=True), symbolic_numbers(call):
        yield call


SHIM = Shim(
    id="int-as-item",
    title="Keeps a number symbolic that `int` takes: `int(n)` of a tensor is `n.item()`, and of a size that size",
    soundness="exact",
    enter=_enter,
    does=(
        "Python asks `int` for a number, which a traced tensor does not have, and which fixes a size. Here it is what "
        "`item` gives of a tensor, and a size itself, which may be symbolic. A fraction is cut off in the program, "
        "which asserts that it is a number of less than 2**62."
    ),
    cures=(
        Cure(kinds=("dynamic_dim_specialised",)),
        Cure(
            kinds=("data_dependent_value", "data_dependent_guard"),
            where=r":[^\n]*: [^\n]*\bint\b",
            born=r"\bint\(|\.item\(",
        ),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="the code asks for n.item() instead",
    rank=16,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="the functions that ask for a number by int",
            before="count = int(lengths.max())\n",
            after="count = lengths.max().item()\n",
        ),
    ),
)

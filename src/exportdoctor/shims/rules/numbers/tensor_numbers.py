"""`int(tensor)` and `float(tensor)` need a number that a traced tensor does not have. Here it is that of `item`, which
may be symbolic."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.eager_run import run_copy
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.code_swap import all_code, user_functions
from exportdoctor.shims.rules.code.number_types import asks_for_type, symbolic_numbers
from exportdoctor.shims.rules.numbers.number_calls import symbolic_divmod, symbolic_float, symbolic_int
from exportdoctor.shims.searches import search_once

_READS = frozenset({"item", "tolist", "__int__", "__float__"})


def _calls(name: str) -> Callable[[CodeType], bool]:
    return lambda code: name in code.co_names and code.co_name != "__init__"


def _find_namespaces(call: ExportCall, name: str) -> list[dict[str, Any]]:
    """The globals of the code that calls `int` or `float`, whichever is the name: of functions that are found from the
    modules on, and of those that read a tensor in an eager run. None of a file in which a function that calls it asks
    for types of numbers, or gives `float` to torch as a dtype."""
    namespaces: dict[int, dict[str, Any]] = {}
    asking: set[int] = set()

    def note(code: CodeType, names: dict[str, Any]) -> None:
        namespaces[id(names)] = names
        if asks_for_type(code) or (name == "float" and _gives_away(code, name)):
            asking.add(id(names))

    for function in user_functions(call, _calls(name)):
        note(function.__code__, function.__globals__)
    for frame in _reading_frames(call, name):
        note(frame.f_code, frame.f_globals)
    return [names for place, names in namespaces.items() if place not in asking and name not in names]


def _gives_away(code: CodeType, name: str) -> bool:
    """Whether it, or a function inside, uses the type otherwise than to call it or to ask for it by `isinstance`."""
    loads = [one for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"]
    plain = [one for one in loads if one.argval == name and one.arg is not None and not one.arg & 1]  # 1: it is called
    asking = [one for one in loads if one.argval == "isinstance"]
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return len(plain) > len(asking) or any(_gives_away(one, name) for one in inner)


def _reading_frames(call: ExportCall, name: str) -> list[FrameType]:
    """The frames of the user's code that calls `int`, or `float`, from which an eager run reads tensors, as far as that
    gets."""
    import torch
    from torch.overrides import TorchFunctionMode

    found: list[FrameType] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and not is_user_file(frame.f_code.co_filename):
                frame = frame.f_back
            reads = getattr(func, "__name__", "") in _READS and frame is not None
            if reads and frame is not None and any(map(_calls(name), all_code(frame.f_code))):
                found.append(frame)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), suppress(Exception), Watch():
        run_copy(call)
    return found


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    whole = search_once("int-as-item", call.module, lambda: _find_namespaces(call, "int"))
    real = search_once("float-as-item", call.module, lambda: _find_namespaces(call, "float"))
    divided = search_once("divmod-as-item", call.module, lambda: _find_namespaces(call, "divmod"))
    if not whole and not real and not divided:
        raise NotApplicable("no function calls `int`, `float` or `divmod`, or one that does asks for types of numbers")
    with (
        symbolic_int(whole, fractions=True),
        symbolic_float(real),
        symbolic_divmod(divided),
        symbolic_numbers(call),
    ):
        yield call


SHIM = Shim(
    id="int-as-item",
    title="Keeps a number symbolic that `int` or `float` takes: of a tensor it is that of `item`, of a size that size",
    soundness="exact",
    enter=_enter,
    does=(
        "Python asks `int` or `float` for a number, which a traced tensor does not have, and which fixes a size. Here "
        "it is what `item` gives of a tensor, and a size itself, which may be symbolic. `int` cuts off a fraction in "
        "the program, which asserts that it is a number of less than 2**62. `divmod`, which a symbolic number does not "
        "have, is `//` and `%`."
    ),
    cures=(
        Cure(kinds=("dynamic_dim_specialised",)),
        Cure(kinds=("python_error",), message=r"unsupported operand type\(s\) for divmod\(\)"),
        Cure(
            kinds=("data_dependent_value", "data_dependent_guard"),
            where=r":[^\n]*: [^\n]*\b(?:int|float)\b",
            born=r"\b(?:int|float)\(|\.item\(",
        ),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="the code asks for n.item() instead",
    rank=16,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="the functions that ask for a number by int or float",
            before="count = int(lengths.max())\n",
            after="count = lengths.max().item()\n",
        ),
    ),
)

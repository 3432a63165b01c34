"""`torch.equal` and its like give a bool of Python. Here it is that of `item`, which a traced tensor has."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any

from exportdoctor.core.failure.frames import is_our_file, is_user_file
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.eager_run import run_copy
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.function_stand_ins import stand_in_for_functions
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.number_types import asks_for_type, symbolic_numbers

_LOADS = frozenset({"LOAD_CONST", "LOAD_COMMON_CONSTANT"})


def _equal(input: Any, other: Any) -> Any:
    return tuple(input.shape) == tuple(other.shape) and (input == other).all().item()


def _allclose(input: Any, other: Any, *how: Any, **named: Any) -> Any:
    import torch

    return torch.isclose(input, other, *how, **named).all().item()


_AS_ITEM = {"equal": _equal, "allclose": _allclose}


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    codes = _comparing_code(call)
    if not codes:
        raise NotApplicable("forward calls neither torch.equal nor torch.allclose")
    for code in codes:
        if asks_for_type(code) or _asks_for_identity(code):
            raise NotApplicable(f"{code.co_qualname} asks whether something `is True`, or for its type")
    with stand_in_for_functions(call.module, _AS_ITEM), symbolic_numbers(call):
        yield call


def _comparing_code(call: ExportCall) -> list[CodeType]:
    """The user's code that is running where an eager run compares tensors, as far as that gets."""
    import torch
    from torch.overrides import TorchFunctionMode

    found: dict[int, CodeType] = {}

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            frame: FrameType | None = sys._getframe(1) if getattr(func, "__name__", "") in _AS_ITEM else None
            while frame is not None and not is_our_file(frame.f_code.co_filename):
                if is_user_file(frame.f_code.co_filename):
                    found[id(frame.f_code)] = frame.f_code
                frame = frame.f_back
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), suppress(Exception), Watch():
        run_copy(call)
    return list(found.values())


def _asks_for_identity(code: CodeType) -> bool:
    """Whether it asks whether something is the object True or False, which a symbol is not."""
    instructions = list(dis.get_instructions(code))
    constants = {one.argval for one in instructions if one.opname in _LOADS and isinstance(one.argval, bool)}
    return bool(constants) and any(one.opname == "IS_OP" for one in instructions)


SHIM = Shim(
    id="equal-as-item",
    title="Keeps the answer of `torch.equal` symbolic: it is `(a == b).all().item()`",
    soundness="precondition",
    enter=_enter,
    does=(
        "`torch.equal` and `torch.allclose` give a bool of Python, which depends on values that a traced tensor does "
        "not have. Here they give what `item` gives, a symbol. A condition on it is the next failure, which other "
        "shims cure. Not applicable where code around it asks whether something `is True`."
    ),
    precondition=(
        "whether compared tensors have the same shape is as in the example (the program refuses others), and no code "
        "asks whether the answer is the object True"
    ),
    cures=(Cure(kinds=("data_dependent_value",), message=r"aten\.(equal|allclose)\b"),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.equal gives a symbolic bool during export",
    rank=16,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="torch.equal and torch.allclose",
            before="same = torch.equal(x, y)\n",
            after="same = x.shape == y.shape and (x == y).all().item()\n",
        ),
    ),
)

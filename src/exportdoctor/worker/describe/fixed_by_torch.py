"""Whether torch's own code took a dynamic size as a number, which fixes it, below a call that could keep it symbolic.

The user's code may ask for a number as well (`range`, `int`, `len`), and a call may need one for what it returns: a
tuple with an entry for each row. Neither is torch's doing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

from exportdoctor.torch_internals.shape_env import is_number_taken
from exportdoctor.torch_internals.tracer_frames import dispatched_op
from exportdoctor.worker.describe.python_frames import is_user_frame
from exportdoctor.worker.describe.symbol_origins import frames_below_attempt

_BY_PYTHON = frozenset({"int_", "guard_int", "__int__", "__index__"})
_NOT_OF_TORCH = ("torch.jit", "torch._dynamo.symbolic_convert", "torch._dynamo.variables")
"""Where torch interprets code of the user's, which then asks."""
_NEAR = 16
_NO_NAMES = frozenset({"fn", "wrapper", "inner", "handle_torch_function", "forward"})


def function_that_fixes(frame: FrameType | None) -> str:
    """The function or class of torch, called by the user's code or by the exporter, whose code takes the size that the
    guard of this frame is about as a number; empty where torch's code does not."""
    callers = frames_below_attempt(frame)
    frames = list(itertools.islice(callers, _NEAR))  # most guards are asked by no number: their stacks are not walked
    taken = next((place for place, one in enumerate(frames) if is_number_taken(one)), None)
    if taken is None:
        return ""
    frames += callers
    below = [one for one in frames[taken + 1 :] if one.f_code.co_name not in _BY_PYTHON]
    if not below or not all(map(_is_of_torch, below[:1])) or any(map(_interprets, below)):
        return ""
    callees = below[:-1] if is_user_frame(below[-1]) else below
    outermost = next((found[0] for one in reversed(callees) if (found := dispatched_op(one)) is not None), None)
    if outermost is not None and _gives_a_list(outermost):
        return ""
    of_operator = str(getattr(outermost, "overloadpacket", outermost or "")).rpartition(".")[2]
    return _name_of(callees, by_user=len(callees) < len(below)) or of_operator


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_of_torch(frame: FrameType) -> bool:
    return _module_of(frame).partition(".")[0] == "torch"


def _interprets(frame: FrameType) -> bool:
    return _module_of(frame).startswith(_NOT_OF_TORCH)


def _gives_a_list(operator: Any) -> bool:
    """Whether the operator gives a list, whose length may be the size."""
    return any("[]" in str(one.type) or "List" in str(one.type) for one in operator._schema.returns)


def _name_of(frames: Sequence[FrameType], *, by_user: bool) -> str:
    """What the outermost of these frames, innermost first, runs; below the exporter only modules of torch count."""
    for frame in reversed([one for one in frames if not _module_of(one).startswith("torch.fx.")]):
        name, owner = frame.f_code.co_name, frame.f_locals.get("self")
        if name == "forward" and isinstance(owner, torch.nn.Module) and type(owner).__module__.startswith("torch.nn."):
            return type(owner).__name__
        if by_user and name == "__torch_function__":
            return str(getattr(frame.f_locals.get("func"), "__name__", ""))
        if by_user and not name.startswith(("_", "<")) and name not in _NO_NAMES:
            return name
    return ""

"""Which submodules' code runs in a frame of Python and in its callers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FrameType

import torch

from exportdoctor.torch_internals.module_proxies import state_id
from exportdoctor.worker.describe.python_frames import is_user_frame

Names = Mapping[int, str]
_CALLS = ("_wrapped_call_impl", "_call_impl", "forward")


def is_call_of_module(name: str) -> bool:
    """Whether a function of that name, which is not the user's, is a call of a module."""
    return name in _CALLS


def runs_module(frame: FrameType) -> bool:
    """Whether a module's frame is its own code or a call of it: how torch's containers find an item is neither."""
    return is_call_of_module(frame.f_code.co_name) or is_user_frame(frame)


def innermost_of(module: str | None, called: str | None) -> str | None:
    """The submodule that runs once `called` is met inside of `module`.

    A helper function runs on behalf of the submodule that called it, also a method of a module around it (a hook).
    """
    if called is None or (module is not None and (not called or module.startswith(f"{called}."))):
        return module
    return called


def running_modules(frames: Iterable[FrameType]) -> tuple[int, ...]:
    """The `state_id` of each module whose code runs in these frames, in their order."""
    found: dict[int, None] = {}
    for frame in frames:
        arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        if arguments[:1] != ("self",) or not runs_module(frame):
            continue
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            found[state_id(owner)] = None
    return tuple(found)


def innermost_module(running: Iterable[int], names: Names) -> str | None:
    """The FQN of the innermost of these modules, which are given innermost first; None where `names` has none."""
    module: str | None = None
    for one in reversed(tuple(running)):
        module = innermost_of(module, names.get(one))
    return module

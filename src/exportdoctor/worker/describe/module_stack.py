"""Which submodules' code runs in a frame of Python and in its callers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType, FunctionType

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
        owner = module_of_method(frame) if runs_module(frame) else None
        if owner is not None:
            found[state_id(owner)] = None
    return tuple(found)


def module_of_method(frame: FrameType) -> torch.nn.Module | None:
    """The module of which a method runs in the frame: its first argument, whatever that is called."""
    code = frame.f_code
    name = code.co_varnames[0] if code.co_argcount else ""
    owner = frame.f_locals.get(name)
    if not isinstance(owner, torch.nn.Module):
        return None
    return owner if name == "self" or _is_method_of(type(owner), code) else None


def _is_method_of(kind: type[torch.nn.Module], code: CodeType) -> bool:
    """Whether the class has a method with this code, which a decorator may wrap."""
    found = (vars(base).get(code.co_name) for base in kind.__mro__)
    return any(getattr(inspect.unwrap(one), "__code__", None) is code for one in found if isinstance(one, FunctionType))


def innermost_module(running: Iterable[int], names: Names) -> str | None:
    """The FQN of the innermost of these modules, which are given innermost first; None where `names` has none."""
    module: str | None = None
    for one in reversed(tuple(running)):
        module = innermost_of(module, names.get(one))
    return module

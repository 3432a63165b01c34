"""`int(tensor)` in the modules that read numbers: it may give a symbolic size, which Python's own does not."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.core.patch_attribute import patch_item


class _WholeType(type):
    def __instancecheck__(cls, value: Any) -> bool:
        import torch

        return isinstance(value, builtins.int | torch.SymInt)


class _Whole(int, metaclass=_WholeType):
    """`int`, but of a tensor it gives what `item` gives, which need not be an `int`."""

    def __new__(cls, value: Any = 0, *rest: Any) -> Any:
        import torch

        return as_whole(value.item() if isinstance(value, torch.Tensor) else value, *rest)


INT = _Whole.__new__.__code__
"""The code that calls `item` in place of Python's `int`."""


def reading_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's code, or that of `int` where that calls `item` for it."""
    while frame is not None and frame.f_code is not INT and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def as_whole(value: Any, *rest: Any) -> Any:
    """What `int` gives; a symbolic whole number stays one."""
    import torch

    return value if isinstance(value, torch.SymInt) else builtins.int(value, *rest)


@contextmanager
def symbolic_int(namespaces: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Within it `int(tensor)` may give a symbolic size in the modules of these namespaces."""
    several = {id(namespace): namespace for namespace in namespaces}
    with ExitStack() as stack:
        for namespace in several.values():
            if "int" not in namespace:
                stack.enter_context(patch_item(namespace, "int", _Whole))
        yield

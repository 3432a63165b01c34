"""Numbers that know where they are compared: what Python reads from a tensor in one function may be asked in another.

An eager run has them in place of the numbers that torch gives. They count as these, and what is computed with them by
Python's operators is one again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_COMPARES = ("__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__", "__bool__")
_COMPUTES = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__floordiv__",
    "__rfloordiv__", "__mod__", "__rmod__", "__neg__", "__pos__", "__abs__",
)  # fmt: skip


class FollowedNumbers:
    """Makes such numbers; `compared` is called with the frame in which one is."""

    def __init__(self, compared: Callable[[FrameType], None]) -> None:
        self.compared = compared
        self._kinds = {base: self._kind_of(base) for base in (int, float)}

    def follow(self, value: Any) -> Any:
        """The number, or each size of a tensor, as one that is followed; anything else as it is."""
        import torch

        if type(value) is torch.Size:
            return torch.Size([self.follow(one) for one in value])
        kind = self._kinds.get(type(value))
        return value if kind is None else kind(value)

    def _kind_of(self, base: type[Any]) -> type[Any]:
        """A class of numbers that are `base`."""
        methods: dict[str, Any] = {name: self._compare(getattr(base, name)) for name in _COMPARES}
        methods |= {name: self._compute(getattr(base, name)) for name in _COMPUTES}
        return type(base.__name__, (base,), {**methods, "__hash__": base.__hash__})

    def _compare(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def compare(*given: Any) -> Any:
            self.compared(sys._getframe(1))
            return method(*given)

        return compare

    def _compute(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: self.follow(method(*given))

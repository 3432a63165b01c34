"""`int(tensor)` and `float(tensor)` in the modules that read numbers: they may give a symbolic number, which those of
Python do not."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.core.patch_attribute import patch_item
from exportdoctor.shims.rules.code.pure_callees import only_computes

if TYPE_CHECKING:
    import torch

_MOST = 2.0**62
"""More than any size; int64 holds what is less."""


class _NumberType(type):
    """Of a class that stands in for one of Python's numbers, `plain`: torch's `symbol` is an instance, too."""

    plain: type
    symbol: str

    def __instancecheck__(cls, value: Any) -> bool:
        import torch

        return isinstance(value, cls.plain | getattr(torch, cls.symbol))

    def __eq__(cls, other: object) -> bool:
        return other is cls.plain or other is cls

    def __hash__(cls) -> builtins.int:
        return hash(cls.plain)


@only_computes
class _Whole(int, metaclass=_NumberType):
    """`int`, but of a tensor it gives what `item` gives, which need not be an `int`."""

    plain, symbol = builtins.int, "SymInt"

    def __new__(cls, value: Any = 0, *rest: Any) -> Any:
        import torch

        return as_whole(value.item() if isinstance(value, torch.Tensor) else value, *rest)


class _WholeOfFraction(_Whole):
    """The same, and of a fraction or a truth value, too."""

    def __new__(cls, value: Any = 0, *rest: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            return as_whole(value, *rest)
        if torch.compiler.is_exporting() and (value.is_floating_point() or value.dtype == torch.bool):
            value = _without_fraction(value)
        return as_whole(value.item(), *rest)


@only_computes
class _Real(float, metaclass=_NumberType):
    """`float`, but of a traced tensor it gives what `item` gives of it in 64 bits, and a symbolic number stays one."""

    plain, symbol = builtins.float, "SymFloat"

    def __new__(cls, value: Any = 0.0) -> Any:
        import torch

        if isinstance(value, torch.Tensor) and torch.compiler.is_exporting() and not value.is_complex():
            return value.to(torch.float64).item()
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return torch.sym_float(value)
        return builtins.float(value)


INT = _Whole.__new__.__code__
"""The code that calls `item` in place of Python's `int`."""


def reading_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's code, or that of `int` where that calls `item` for it."""
    while frame is not None and frame.f_code is not INT and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _without_fraction(value: torch.Tensor) -> torch.Tensor:
    """The whole number that `int` makes of a tensor of one element, as a tensor; asserted is that there is one."""
    import torch

    if value.is_floating_point():
        torch.ops.aten._assert_async.msg((value.abs() < _MOST).all(), "int() of what is no number, or too large")
    return value.to(torch.int64)


def as_whole(value: Any, *rest: Any) -> Any:
    """What `int` gives; a symbolic whole number stays one, and of a symbolic fraction one is made."""
    import torch

    if isinstance(value, torch.SymInt):
        return value
    return torch.sym_int(value) if isinstance(value, torch.SymFloat) else builtins.int(value, *rest)


@only_computes
def _quotient_and_rest(value: Any, divisor: Any) -> Any:
    """`divmod`, which a symbolic number does not have."""
    import torch

    if any(isinstance(one, torch.SymInt | torch.SymFloat) for one in (value, divisor)):
        return value // divisor, value % divisor
    return divmod(value, divisor)


@contextmanager
def symbolic_int(namespaces: Iterable[dict[str, Any]], *, fractions: bool = False) -> Iterator[None]:
    """Within it `int(tensor)` may give a symbolic size in the modules of these namespaces, with `fractions` also where
    the tensor holds no whole number."""
    kind = _WholeOfFraction if fractions else _Whole
    several = {id(namespace): namespace for namespace in namespaces}
    with ExitStack() as stack:
        for namespace in several.values():
            if "int" not in namespace:
                stack.enter_context(patch_item(namespace, "int", kind))
        yield


def symbolic_divmod(namespaces: Iterable[dict[str, Any]]) -> AbstractContextManager[None]:
    """Within it `divmod` takes symbolic numbers in the modules of these namespaces."""
    return _bind_in(namespaces, "divmod", _quotient_and_rest)


def symbolic_float(namespaces: Iterable[dict[str, Any]]) -> AbstractContextManager[None]:
    """Within it `float(tensor)` may give a symbolic number in the modules of these namespaces."""
    return _bind_in(namespaces, "float", _Real)


@contextmanager
def _bind_in(namespaces: Iterable[dict[str, Any]], name: str, value: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for namespace in {id(one): one for one in namespaces}.values():
            stack.enter_context(patch_item(namespace, name, value))
        yield

"""Exact arithmetic of numbers that follow from sizes: ratios of a whole number, which may be symbolic, and a plain one.

A quotient stays a ratio until it is rounded, so that no symbolic float is needed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

_LARGEST = 2**20
"""Of a denominator: another one is that of a float such as 0.1, which stands for no ratio of sizes."""


@dataclass(frozen=True)
class Ratio:
    """`top / bottom`; `top` is an `int` or a `SymInt`, `bottom` a positive `int`."""

    top: Any
    bottom: int = 1


def as_ratio(value: Any) -> Ratio | None:
    """A number of Python or a symbolic whole number as a ratio."""
    import torch

    match value:
        case Ratio():
            return value
        case bool():
            return None
        case int() | torch.SymInt():
            return Ratio(value)
        case float() if math.isfinite(value):
            exact = Fraction(value)
            return Ratio(exact.numerator, exact.denominator) if exact.denominator <= _LARGEST else None
    return None


def _common(a: Ratio, b: Ratio) -> tuple[Any, Any, int]:
    """Both numerators over the least common denominator, and that."""
    bottom = math.lcm(a.bottom, b.bottom)
    return a.top * (bottom // a.bottom), b.top * (bottom // b.bottom), bottom


def _add(a: Ratio, b: Ratio) -> Ratio:
    x, y, bottom = _common(a, b)
    return Ratio(x + y, bottom)


def _subtract(a: Ratio, b: Ratio) -> Ratio:
    x, y, bottom = _common(a, b)
    return Ratio(x - y, bottom)


def _multiply(a: Ratio, b: Ratio) -> Ratio:
    if not isinstance(b.top, int):
        a, b = b, a
    if not isinstance(b.top, int):
        return Ratio(a.top * b.top, a.bottom * b.bottom)
    shared = math.gcd(b.top, a.bottom)
    return Ratio(a.top * (b.top // shared), a.bottom // shared * b.bottom)


def _divide(a: Ratio, b: Ratio) -> Ratio | None:
    if not isinstance(b.top, int) or b.top == 0:
        return None  # the sign of a symbolic divisor is not known
    sign = 1 if b.top > 0 else -1
    return _multiply(a, Ratio(sign * b.bottom, abs(b.top)))


def _floor_divide(a: Ratio, b: Ratio) -> Ratio | None:
    quotient = _divide(a, b)
    return None if quotient is None else floor(quotient)


def _remainder(a: Ratio, b: Ratio) -> Ratio | None:
    quotient = _floor_divide(a, b)
    return None if quotient is None else _subtract(a, _multiply(quotient, b))


def _largest(a: Ratio, b: Ratio) -> Ratio:
    x, y, bottom = _common(a, b)
    return Ratio(_maximum(x, y), bottom)


def _smallest(a: Ratio, b: Ratio) -> Ratio:
    return _negate(_largest(_negate(a), _negate(b)))


def _maximum(x: Any, y: Any) -> Any:
    import torch

    return max(x, y) if isinstance(x, int) and isinstance(y, int) else torch.sym_max(x, y)


def _negate(a: Ratio) -> Ratio:
    return Ratio(-a.top, a.bottom)


def _absolute(a: Ratio) -> Ratio:
    return _largest(a, _negate(a))


def floor(a: Ratio) -> Ratio:
    """The largest whole number that is not larger."""
    return Ratio(a.top // a.bottom) if a.bottom > 1 else a


def _ceil(a: Ratio) -> Ratio:
    return Ratio((a.top + a.bottom - 1) // a.bottom) if a.bottom > 1 else a


def truncate(a: Ratio) -> Ratio:
    """Without what is behind the point, as a conversion to a whole number."""
    if a.bottom == 1:
        return a
    return Ratio(_maximum(a.top, 0) // a.bottom - _maximum(-a.top, 0) // a.bottom)


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[[Ratio, Ratio], Any]:
    def compare_ratios(a: Ratio, b: Ratio) -> Any:
        x, y, _ = _common(a, b)
        return compare(x, y)

    return compare_ratios


_OF_ONE: Mapping[str, Callable[[Ratio], Any]] = {
    "neg": _negate, "negative": _negate, "abs": _absolute, "absolute": _absolute,
    "floor": floor, "ceil": _ceil, "trunc": truncate, "fix": truncate,
}  # fmt: skip
_OF_TWO: Mapping[str, Callable[[Ratio, Ratio], Any]] = {
    "add": _add, "sub": _subtract, "subtract": _subtract, "mul": _multiply, "multiply": _multiply,
    "div": _divide, "divide": _divide, "truediv": _divide, "true_divide": _divide,
    "floordiv": _floor_divide, "floor_divide": _floor_divide, "mod": _remainder, "remainder": _remainder,
    "maximum": _largest, "max": _largest, "minimum": _smallest, "min": _smallest,
    **{name: _comparison(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}  # fmt: skip
_REVERSED = frozenset({"rsub", "rdiv", "rtruediv", "rfloordiv", "rmod", "rmul", "radd"})
_ROUNDINGS: Mapping[Any, Callable[[Ratio], Ratio]] = {None: lambda a: a, "floor": floor, "trunc": truncate}


def compute(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a function of torch of that name gives, exactly: a ratio or a condition. None where it is not known."""
    name = name.strip("_")
    if name in {"clamp", "clip"}:
        return _clamp(*args, **kwargs) if args and kwargs.keys() <= {"min", "max"} else None
    if name in _REVERSED:
        name, args = name[1:], args[::-1]
    ratios = [ratio for one in args if (ratio := as_ratio(one)) is not None]
    rounding = kwargs.get("rounding_mode") if name in {"div", "divide"} else None
    if len(ratios) != len(args) or (kwargs and set(kwargs) != {"rounding_mode"}) or rounding not in _ROUNDINGS:
        return None
    if len(ratios) == 1 and name in _OF_ONE:
        return _OF_ONE[name](ratios[0])
    if len(ratios) == 2 and name in _OF_TWO:
        made = _OF_TWO[name](*ratios)
        return _ROUNDINGS[rounding](made) if isinstance(made, Ratio) else made
    return None


def _clamp(value: Any, min: Any = None, max: Any = None) -> Ratio | None:
    made = as_ratio(value)
    for bound, limit in ((min, _largest), (max, _smallest)):
        if made is None or bound is None:
            continue
        ratio = as_ratio(bound)
        made = None if ratio is None else limit(made, ratio)
    return made

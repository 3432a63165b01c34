"""Which releases a statement holds for, such as `>=4.53,<5`: release numbers alone, no pre-releases or local parts."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_ORDER: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}
_BOUND = re.compile(r"\s*(<=|>=|==|<|>)\s*(\d+(?:\.\d+)*)\s*")
_RELEASE = re.compile(r"\s*v?(\d+(?:\.\d+)*)")


def is_range(text: str) -> bool:
    """Whether `text` is a list of bounds, separated by commas."""
    return all(_BOUND.fullmatch(bound) for bound in text.split(","))


def holds(text: str, version: str | None) -> bool | None:
    """Whether `version` lies within the range; None where either of them can't be read."""
    release = _RELEASE.match(version or "")
    if release is None or not is_range(text):
        return None
    bounds = (_BOUND.fullmatch(bound) for bound in text.split(","))
    return all(_ORDER[found[1]](*_padded(release[1], found[2])) for found in bounds if found)


def _padded(one: str, other: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both as numbers of one length: 2.13 and 2.13.0 are the same release."""
    left, right = [int(n) for n in one.split(".")], [int(n) for n in other.split(".")]
    length = max(len(left), len(right))
    return tuple(left + [0] * (length - len(left))), tuple(right + [0] * (length - len(right)))

"""The whole numbers in a program's checks: how often what they refuse may come back, and sizes that they may name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

_DIVISOR = re.compile(r"(?:%|//)\s*\(?(\d+)\b|\bMod\((?:[^()]|\([^()]*\))*?, (\d+)\)")
_INDEX = re.compile(r"\[[^\]]*\]|\b[a-z]+\d+\b")
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_LARGEST_CYCLE = 1366
"""Three of them are still evaluated one by one."""
_MOST_NUMBERS = 8


@dataclass(frozen=True, kw_only=True)
class CheckNumbers:
    """`cycle`: the divisors' least common multiple, or the largest one, 0 without any. `named`: sizes next to numbers,
    sums, differences and quotients of those of one check."""

    cycle: int
    named: tuple[int, ...]


def numbers_in(checks: Iterable[str]) -> CheckNumbers:
    """Those in the texts of torch's checks; indices and names of symbols are none."""
    divisors, named = {1}, set[int]()
    for text in checks:
        plain = _INDEX.sub("", text)
        divisors |= {int(number) for found in _DIVISOR.findall(plain) for number in found if number}
        numbers = sorted({int(number) for number in _NUMBER.findall(plain)} - {0}, reverse=True)[:_MOST_NUMBERS]
        named |= set(numbers)
        for one in numbers:
            for other in numbers:
                named |= {one + other, abs(one - other), one // other}
    divisors = {one for one in divisors if 0 < one <= _LARGEST_CYCLE}
    cycle = math.lcm(*divisors)
    return CheckNumbers(
        cycle=cycle if cycle <= _LARGEST_CYCLE else max(divisors),
        named=tuple(sorted({size + by for size in named for by in (-1, 0, 1) if 0 < size + by < 2**31})),
    )

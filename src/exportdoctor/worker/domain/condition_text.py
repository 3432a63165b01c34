"""Sizes and the relations between them as people write them: `(-n) % 4`, `n is a multiple of 2`."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
from sympy.printing.precedence import PRECEDENCE  # type: ignore[import-untyped]
from sympy.printing.str import StrPrinter  # type: ignore[import-untyped]


def condition_text(expr: Any) -> str:
    """A relation between sizes as people write it."""
    if isinstance(expr, sympy.Eq) and isinstance(expr.lhs, sympy.Basic):
        for side, other in ((expr.lhs, expr.rhs), (expr.rhs, expr.lhs)):
            if type(side).__name__ in ("Mod", "PythonMod") and other == 0:
                factor, rest = side.args[0].as_coeff_Mul()
                unit = side.args[1]
                if factor.is_Integer and unit.is_Integer:
                    unit = unit / sympy.gcd(factor, unit)
                    return f"{_show(rest)} is a multiple of {unit}"
                return f"{_show(side.args[0])} is a multiple of {_show(unit)}"
    signs = {"Eq": "=", "Equality": "=", "Ne": "≠", "Unequality": "≠", "GreaterThan": "≥", "LessThan": "≤",
             "StrictGreaterThan": ">", "StrictLessThan": "<"}  # fmt: skip
    sign = signs.get(type(expr).__name__)
    return f"{_show(expr.lhs)} {sign} {_show(expr.rhs)}" if sign else _show(expr)


class _SizePrinter(StrPrinter):  # type: ignore[misc]
    """Prints divisions and remainders as Python writes them."""

    printmethod = ""  # torch's functions would print themselves

    def _print_FloorDiv(self, expr: Any) -> str:
        return "//".join(self.parenthesize(one, PRECEDENCE["Mul"], strict=True) for one in expr.args)

    def _print_Mod(self, expr: Any) -> str:
        return " % ".join(self.parenthesize(one, PRECEDENCE["Mul"], strict=True) for one in expr.args)

    _print_PythonMod = _print_Mod

    def parenthesize(self, item: Any, level: int, strict: bool = False) -> str:
        """A part of a product, a sum or a power; sympy takes a remainder for a call, which needs no parentheses."""
        if type(item).__name__ in ("FloorDiv", "Mod", "PythonMod"):
            return f"({self._print(item)})"
        return str(super().parenthesize(item, level, strict=strict))


def _show(expr: Any) -> str:
    return str(_SizePrinter().doprint(expr))

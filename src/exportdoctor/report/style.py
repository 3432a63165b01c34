"""Options of a text report, filled in by the command line. `width` in columns, at least 40."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Style:
    """`ascii`: only ASCII symbols; `colour`: ANSI colours."""

    width: int = 100
    colour: bool = False
    ascii: bool = False

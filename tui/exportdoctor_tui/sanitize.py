"""Turns text that others wrote into text that is safe to draw: no markup, no control characters, one line where asked.

Every widget draws Content made from these strings; nothing in this package parses markup.
"""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

from exportdoctor.report.wording import plain

TOO_SMALL = "This terminal is too small.\nexportdoctor needs 60 columns and 15 lines."


def line(text: str) -> str:
    """`text` on one line."""
    return " ".join(plain(text).split())


def block(text: str) -> str:
    """`text` with its lines, tabs as spaces."""
    return plain(text).expandtabs(4)


def fitted(text: str, width: int) -> str:
    """`text` in exactly `width` cells; an ellipsis stands for what is cut away."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(set_cell_size(text, width - 1).rstrip() + "…", width)


def right(text: str, width: int) -> str:
    """`text` in exactly `width` cells, at their right end."""
    room = width - cell_len(text)
    return " " * room + text if room >= 0 else fitted(text, width)

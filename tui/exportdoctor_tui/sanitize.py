"""Makes text of models, messages and files safe to draw: no control characters, a fixed width where one is needed.

Widgets draw Content made from these strings, and are created with `markup=False`.
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


def fit(text: str, width: int) -> str:
    """`text` in exactly `width` cells, padded or cut with an ellipsis."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(set_cell_size(text, width - 1).rstrip() + "…", width)


def align_right(text: str, width: int) -> str:
    """`text` in exactly `width` cells, aligned to the right."""
    room = width - cell_len(text)
    return " " * room + text if room >= 0 else fit(text, width)

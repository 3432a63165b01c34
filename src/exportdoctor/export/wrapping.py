"""Lines of text for files that people read: as wide as this project's code."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_WIDTH = 110


def wrapped(text: str, *, indent: str = "") -> list[str]:
    """The text in lines of at most 110 characters; links and names are not broken."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def commented(lines: Sequence[str]) -> str:
    """The lines of a docstring as they may stand in a file: no backslash means anything in them."""
    return "\n".join(line.rstrip().replace("\\", "\\\\") for line in lines)

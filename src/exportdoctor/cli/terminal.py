"""What the streams can show: width, colour, characters. The only place that asks; reports take the answer as values."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from exportdoctor.report.style import Style

_SYMBOLS = "✓✗◐○☠⧗·…Δ"
_UNBOUND = 100


def style_of(stream: TextIO) -> Style:
    """How a text report looks best on `stream`; a file or pipe gets a fixed width and no colour."""
    terminal = stream.isatty()
    columns = shutil.get_terminal_size((_UNBOUND, 24)).columns if terminal or "COLUMNS" in os.environ else _UNBOUND
    return Style(
        width=max(40, columns),
        colour=(terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"),
        ascii=not _can_show(stream, _SYMBOLS),
    )


def write_out(text: str) -> None:
    """The result on stdout; a reader who has seen enough (`| head`) is no error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _can_show(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True

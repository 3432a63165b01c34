"""What a stream can show: width, colour, characters. Reports take it as a Style."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from typing import TextIO

from exportdoctor.core.errors import StoreError
from exportdoctor.report.canvas import Style

_SYMBOLS = "✓✗✚○☠◷·…Δ"
_WIDTH_OF_A_FILE = 100
_UNLIMITED = 10_000


def style_of(stream: TextIO) -> Style:
    """The style of text on `stream`; a file or pipe gets a fixed width and no colour."""
    terminal = stream.isatty()
    columns = (
        shutil.get_terminal_size((_WIDTH_OF_A_FILE, 24)).columns
        if terminal or "COLUMNS" in os.environ
        else _WIDTH_OF_A_FILE
    )
    capable = terminal and os.environ.get("TERM") not in ("dumb", "linux")
    return Style(
        width=max(40, columns),
        colour=not os.environ.get("NO_COLOR")
        and (bool(os.environ.get("FORCE_COLOR")) or (terminal and os.environ.get("TERM") != "dumb")),
        links=capable and not os.environ.get("NO_COLOR"),
        ascii=not _can_show(stream, _SYMBOLS),
    )


def table_style(stream: TextIO) -> Style:
    """The style for tables: on a terminal as wide as that, elsewhere one line for each row, for grep."""
    style = style_of(stream)
    return style if stream.isatty() else replace(style, width=_UNLIMITED)


def write_out(text: str) -> None:
    """Write the result to stdout; a closed pipe (`| head`) is no error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise StoreError(f"The result cannot be written to stdout: {error.strerror or error}") from error


def _can_show(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True

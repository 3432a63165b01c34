"""What a stream can show: width, colour, characters. Reports take it as a Style."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from exportdoctor.core.errors import StoreError
from exportdoctor.report.canvas import Style
from exportdoctor.store.atomic_write import make_folder, replace_file

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


def write_result(
    render: Callable[[str, Style], str], form: str, output: Path | None, *, to_print: str = "text"
) -> None:
    """Write what `render` makes for a format and a style to the file, or to stdout.

    Where the file cannot be written, the result is printed in the format `to_print` before StoreError is raised.
    """
    if output is None:
        write_out(render(form, style_of(sys.stdout)))
        return
    try:
        make_folder(output.parent)
        replace_file(output, render(form, Style()).encode())
    except StoreError:
        write_out(render(to_print, style_of(sys.stdout)))
        raise


def _can_show(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True

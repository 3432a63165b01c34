"""Coloured text in a given width: wrapping, indenting and columns. Knows nothing of reports.

Law: nothing is cut away; what does not fit goes on in the next line, and a word longer than a line is broken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from exportdoctor.report.style import Style

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
    "title": "1;36",
}
_COLUMN = 20  # columns that are worth wrapping text in
_SHORTEST = 8  # columns that a line has at least, however deep it is indented
_ASCII = str.maketrans({"·": "-", "…": "...", "Δ": "diff"})


@dataclass(frozen=True)
class Span:
    """A piece of text in one colour; no colour is the terminal's own."""

    text: str
    colour: str = ""


@dataclass
class Canvas:
    """Lines, written from top to bottom."""

    style: Style
    _lines: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Everything, ending with a newline."""
        return "\n".join(self._lines) + "\n"

    def blank(self) -> None:
        """An empty line, never two."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def paragraph(self, text: str, *, indent: int = 0, hang: int = 0, colour: str = "") -> None:
        """Words, wrapped; continuation lines are indented by `hang` more."""
        for line in self._wrapped(text, indent=indent, hang=hang):
            self._lines.append(self._painted(line, colour))

    def code(self, text: str, *, indent: int) -> None:
        """Source as it is written; a long line is broken where it must be."""
        room = max(16, self.style.width - indent)
        for line in text.splitlines():
            for start in range(0, max(1, len(line)), room):
                self._lines.append((" " * indent + self._painted(line[start : start + room], "yellow")).rstrip())

    def columns(self, cells: Sequence[Span], *, widths: Sequence[int], indent: int, hang: int = 2) -> None:
        """Cells side by side, each but the last padded to its width; one below the other where there is no room.

        The last one is wrapped in its own column if enough of that is left.
        """
        texts = [self._plain(cell.text) for cell in cells]
        padded = [text.ljust(width) for text, width in zip(texts[:-1], widths, strict=False)]
        start = indent + sum(len(text) + 2 for text in padded)
        used = indent + len("  ".join((*padded, texts[-1])).rstrip())
        if used > self.style.width and (self.style.width - start < _COLUMN or not texts[-1]):
            self.stacked(cells, indent=indent, hang=hang)
            return
        painted = [
            self._painted(text, cell.colour) + " " * (len(wide) - len(text))
            for text, wide, cell in zip(texts[:-1], padded, cells, strict=False)
        ]
        for line in wrapped(texts[-1], width=max(_COLUMN, self.style.width - start)) or [""]:
            lead = "  ".join((*painted, "")) if painted else ""
            self._lines.append((" " * indent + lead + self._painted(line, cells[-1].colour)).rstrip())
            painted = [" " * (start - indent - 2)]

    def stacked(self, cells: Sequence[Span], *, indent: int, hang: int) -> None:
        """The first cell on its own line, each other one below it, further in."""
        for number, cell in enumerate(cell for cell in cells if cell.text):
            if number == 0:
                self.paragraph(cell.text, indent=indent, hang=hang, colour=cell.colour)
            else:
                self.paragraph(cell.text, indent=indent + hang, colour=cell.colour)

    def _wrapped(self, text: str, *, indent: int, hang: int) -> list[str]:
        first = " " * indent
        return wrapped(self._plain(text), width=self.style.width, first=first, later=first + " " * hang)

    def _plain(self, text: str) -> str:
        text = text.replace("\n", " ")
        return text.translate(_ASCII) if self.style.ascii else text

    def _painted(self, text: str, colour: str) -> str:
        if not colour or not self.style.colour or not text:
            return text
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def wrapped(text: str, *, width: int, first: str = "", later: str = "") -> list[str]:
    """`text` as lines of at most `width` columns, each with its indentation; a run of spaces inside a line stays."""
    lines: list[str] = []
    line, bare = first, True  # bare: nothing but its indentation
    for gap, word in re.findall(r"(\s*)(\S+)", text):
        piece = word if bare else gap + word
        if not bare and len(line) + len(piece) > width:
            lines.append(line)
            line, piece = later, word
        while len(piece) > (room := max(_SHORTEST, width - len(line))):
            end = _break(piece, room)
            lines.append(line + piece[:end])
            line, piece = later, piece[end:]
        line, bare = line + piece, False
    return lines if bare else [*lines, line]


def _break(word: str, room: int) -> int:
    """Where to break a word that is longer than a line: after a separator far enough in, or at the edge."""
    return max(word.rfind(mark, room // 2, room) for mark in "/._-,") + 1 or room

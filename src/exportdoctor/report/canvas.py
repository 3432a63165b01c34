"""Coloured text in a given width: wrapping, indenting and columns.

Nothing is cut away: what does not fit continues on the next line, and a word longer than a line is broken. rich gives
the colours. The wrapping is our own because rich cannot hang an indent, break a path after a separator, or put columns
below each other on a narrow terminal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from exportdoctor.report.wording.formatting import plain, to_ascii

_STYLES = {"title": "bold cyan"}  # all other names are rich's own
_COLUMN = 20  # columns that are worth wrapping text in
_ISSUE = re.compile(r"(?<![\w./-])([\w-]+/[\w.-]+)#(\d+)\b")
_SHORTEST = 8  # columns that a line has at least, however deep it is indented


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a text report may look: `width` in columns, at least 40; only ASCII symbols; ANSI colours; terminal links."""

    width: int = 100
    colour: bool = False
    ascii: bool = False
    links: bool = False


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
        """Everything, ending with a newline; with links, names of GitHub issues are some."""
        text = "\n".join(self._lines) + "\n"
        return _ISSUE.sub(_link, text) if self.style.links else text

    def blank(self) -> None:
        """An empty line, never two."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def paragraph(self, text: str, *, indent: int = 0, hang: int = 0, colour: str = "") -> None:
        """Words, wrapped; continuation lines are indented by `hang` more."""
        first = " " * indent
        lines = wrap_words(self._one_line(text), width=self.style.width, first=first, later=first + " " * hang)
        self._lines += [self._paint(line, colour) for line in lines]

    def unbroken(self, text: str, *, indent: int) -> None:
        """A line that only the terminal wraps, so that a path in it can be clicked and copied."""
        self._lines.append(" " * indent + self._one_line(text))

    def code(self, text: str, *, indent: int, colour: str = "yellow") -> None:
        """Source as it is written; a line that is too long is broken at the edge."""
        room = max(16, self.style.width - indent)
        for line in plain(text).splitlines():
            for start in range(0, max(1, len(line)), room):
                self._lines.append((" " * indent + self._paint(line[start : start + room], colour)).rstrip())

    def table(self, rows: Sequence[Sequence[Span]], *, indent: int = 0, hang: int = 2) -> None:
        """Rows of cells, each column as wide as its longest cell."""
        widths = [max(len(cell.text) for cell in column) for column in zip(*rows, strict=True)]
        for row in rows:
            self.columns(row, widths=widths, indent=indent, hang=hang)

    def columns(self, cells: Sequence[Span], *, widths: Sequence[int], indent: int, hang: int = 2) -> None:
        """Cells side by side, each but the last padded to its width; one below the other where there is no room.

        The last one is wrapped in its own column if enough of that is left.
        """
        texts = [self._one_line(cell.text) for cell in cells]
        padded = [text.ljust(width) for text, width in zip(texts[:-1], widths, strict=False)]
        start = indent + sum(len(text) + 2 for text in padded)
        used = indent + len("  ".join((*padded, texts[-1])).rstrip())
        if used > self.style.width and (self.style.width - start < _COLUMN or not texts[-1]):
            self._stack(cells, indent=indent, hang=hang)
            return
        lead = " " * indent + "".join(
            self._paint(text, cell.colour) + " " * (len(wide) - len(text) + 2)
            for text, wide, cell in zip(texts[:-1], padded, cells, strict=False)
        )
        for line in wrap_words(texts[-1], width=max(_COLUMN, self.style.width - start)) or [""]:
            self._lines.append((lead + self._paint(line, cells[-1].colour)).rstrip())
            lead = " " * start

    def _stack(self, cells: Sequence[Span], *, indent: int, hang: int) -> None:
        """The first cell on its own line, each other one below it, further in."""
        first, *others = [cell for cell in cells if cell.text]
        self.paragraph(first.text, indent=indent, hang=hang, colour=first.colour)
        for cell in others:
            self.paragraph(cell.text, indent=indent + hang, colour=cell.colour)

    def _one_line(self, text: str) -> str:
        text = plain(text).replace("\n", " ")
        return to_ascii(text) if self.style.ascii else text

    def _paint(self, text: str, colour: str) -> str:
        if not colour or not self.style.colour or not text:
            return text
        from rich.color import ColorSystem
        from rich.style import Style as RichStyle

        return RichStyle.parse(_STYLES.get(colour, colour)).render(text, color_system=ColorSystem.STANDARD)


def _link(found: re.Match[str]) -> str:
    """The name of an issue as a link for terminals (OSC 8)."""
    address = f"https://github.com/{found[1]}/issues/{found[2]}"
    return f"\x1b]8;;{address}\x1b\\{found[0]}\x1b]8;;\x1b\\"


def wrap_words(text: str, *, width: int, first: str = "", later: str = "") -> list[str]:
    """`text` as lines of at most `width` columns, each with its indentation; a run of spaces inside a line stays."""
    lines: list[str] = []
    line, bare = first, True  # bare: nothing but its indentation
    for gap, word in re.findall(r"(\s*)(\S+)", text):
        piece = word if bare else gap + word
        if not bare and len(line) + len(piece) > width:
            lines.append(line)
            line, piece = later, word
        while len(piece) > (room := max(_SHORTEST, width - len(line))):
            end = _break_at(piece, room)
            lines.append(line + piece[:end])
            line, piece = later, piece[end:]
        line, bare = line + piece, False
    return lines if bare else [*lines, line]


def _break_at(word: str, room: int) -> int:
    """Where to break a word that is longer than a line: after a separator far enough in, or at the edge."""
    return max(word.rfind(mark, room // 2, room) for mark in "/._-,") + 1 or room

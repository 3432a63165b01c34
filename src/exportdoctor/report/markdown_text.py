"""Text in Markdown in which nothing of a model's is markup."""

from __future__ import annotations

import re

from exportdoctor.report import wording

_SPECIAL = re.compile(r"([\\`*{}\[\]<>|~]|(?<!\w)#|(?<!\w)_|_(?!\w))")


def escape_line(text: str) -> str:
    """One line of `text` in which nothing is markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(wording.plain(text).split()))


def bold(text: str) -> str:
    return f"**{escape_line(text)}**" if text else ""


def code_span(text: str) -> str:
    """`text` as a code span, whatever backticks it has."""
    text = " ".join(wording.plain(text).split()) or " "
    ticks = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    space = " " if "`" in text else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def fence(text: str, language: str) -> str:
    """`text` as a code block, whatever fences it has."""
    text = wording.plain(text)
    ticks = "`" * max(3, max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"

"""Source as Content: highlighted and numbered; the culprit has a marker, so that it is seen without colour."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pygments.token import Token  # type: ignore[import-untyped]
from textual.content import Content
from textual.highlight import HighlightTheme, highlight

from exportdoctor_tui.sanitize import block, line

if TYPE_CHECKING:
    from exportdoctor.report.source_lines import Excerpt


class _Theme(HighlightTheme):
    """Textual's, but names are not coloured: most of Python is names."""

    STYLES = {  # noqa: RUF012
        **HighlightTheme.STYLES,
        Token.Name: "$foreground",
        Token.Name.Function: "$text-primary",
        Token.Name.Builtin: "$text-primary",
        Token.Name.Class: "$text-primary bold",
        Token.Keyword.Namespace: "$text-accent",
        Token.Operator: "$foreground 80%",
        Token.Operator.Word: "$text-accent",
    }


def code(excerpt: Excerpt, *, expression: str | None = None, widest: int = 400) -> Content:
    """The excerpt with its line numbers; lines around the culprit are cut at `widest` cells."""
    text = textwrap.dedent(block("\n".join(excerpt.lines)))
    lines = highlight(text, language="python", tab_size=4, theme=_Theme).split("\n", allow_blank=True)
    width = len(str(excerpt.first + len(excerpt.lines)))
    found = []
    for number, content in enumerate(lines[: len(excerpt.lines)], start=excerpt.first):
        if number == excerpt.culprit:
            content = _underline(content, expression)
            found.append(Content.assemble((f"▶ {number:>{width}} ┃ ", "bold $text-error"), content))
        else:
            content = content.truncate(widest, ellipsis=True)
            found.append(Content.assemble((f"  {number:>{width}} │ ", "$foreground 75%"), content))
    if excerpt.remark:
        found.append(Content.styled(f"  ({excerpt.remark})", "$foreground 75% italic"))
    return Content("\n").join(found)


def script(text: str) -> Content:
    """A whole Python script."""
    return highlight(block(text), language="python", tab_size=4, theme=_Theme)


def _underline(content: Content, expression: str | None) -> Content:
    """Underline the evaluated `expression`, if it is on this line."""
    wanted = line(expression or "")
    start = content.plain.find(wanted) if wanted else -1
    return content.stylize("bold underline", start, start + len(wanted)) if start >= 0 else content

"""What a command printed, as text; a diff in its colours."""

from __future__ import annotations

from textual.content import Content

from exportdoctor_tui.sanitize import block

_DIFF = {"+": "$text-success", "-": "$text-error", "@": "$text-accent"}


def output(text: str) -> Content:
    """The whole of it, or a word where there is none."""
    shown = block(text).strip("\n")
    if not shown:
        return Content.styled("(no output yet)", "$foreground 60%")
    if "\n@@ " not in shown:
        return Content(shown)
    head, mark, diff = shown.partition("\n--- ")
    lines = [Content.styled(each, _DIFF.get(each[:1], "")) for each in (mark.lstrip("\n") + diff).splitlines()]
    return Content("\n").join((Content(head), *lines))

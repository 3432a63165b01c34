"""Text that is drawn anew only where it changed, and laid out anew only where its height may have."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


class Text(Static):
    """A layout of the screen costs more than everything else that a key does."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, markup=False)
        self._shown = Content("")

    def show(self, content: Content) -> None:
        """Draw other text, if it is other."""
        if content.is_same(self._shown):
            return
        before, self._shown = self._shown, content
        self.update(content, layout=self._lines(before) != self._lines(content))

    def _lines(self, content: Content) -> int:
        """How many lines it takes up in the width there is, about: a wrapped one may hold a word less."""
        width = max(1, self.content_size.width)
        return sum(max(1, -(-each.cell_length // width)) for each in content.split("\n", allow_blank=True))

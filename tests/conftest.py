"""What every test may rely on: the width of a report is not the accident of who started pytest."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_terminal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-xdist gives its workers COLUMNS, which a report would obey."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)

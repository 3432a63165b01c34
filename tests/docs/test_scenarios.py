"""The page of scenarios says of each construct what a scan says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ASKED = ("while_on_tensor", "dataclass_input")
"""By `make test`: what fails in its code, and what fails for its input."""


@pytest.fixture(scope="module")
def writer() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    import write_scenarios

    return write_scenarios


def _names(writer: Any) -> list[str]:
    return [name for _, name, _ in writer.constructs()]


def test_the_page_has_a_row_for_each_construct(writer: Any) -> None:
    text = writer.PAGE.read_text()
    assert [title for _, _, title in writer.constructs() if f"| {title} |" not in text] == []
    assert set(ASKED) <= set(_names(writer))


def _differences(writer: Any, names: tuple[str, ...]) -> list[str]:
    lines = writer.PAGE.read_text().splitlines()
    asked = [writer.row(file, name, title) for file, name, title in writer.constructs() if name in names]
    return [line for line in writer.table(asked) if line.startswith("| ") and line not in lines]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_a_row_is_what_scans_say(writer: Any, name: str) -> None:
    assert _differences(writer, (name,)) == []


@pytest.mark.night
def test_each_row_is_what_scans_say(writer: Any) -> None:
    assert _differences(writer, tuple(_names(writer))) == []

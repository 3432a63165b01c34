"""Pictures of each screen at three sizes in both themes; after a wanted change, run with --snapshot-update."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from exportdoctor.store.lock import FolderLock
from exportdoctor_tui.screens.run import RunScreen
from exportdoctor_tui.themes import DARK, LIGHT
from tui_recorded import HERE, NOW, REPOSITORY, app_on, recorded, runs_of, settled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = ((80, 24), (120, 36), (200, 60))
LOOKS = [pytest.param(size, theme, id=f"{size[0]}x{size[1]}-{theme.rpartition('-')[2]}")
         for size in SIZES for theme in (DARK.name, LIGHT.name)]  # fmt: skip
every_look = pytest.mark.parametrize(("size", "theme"), LOOKS)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The list of runs tells local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def pictured(snap_compare: Any, app: Any, size: tuple[int, int], theme: str, *keys: str) -> bool:
    """Whether the screen after these keys is the one of the last picture."""

    async def before(pilot: Any) -> None:
        await settled(pilot)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.05)
        await pilot.pause(0.2)

    app.theme = theme
    return bool(snap_compare(app, terminal_size=size, run_before=before))


@every_look
def test_the_story_of_the_first_finding(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    assert pictured(snap_compare, app_on(HERE / "qwen_full_static"), size, theme)


@every_look
def test_the_stack_of_a_crash_with_its_source(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    assert pictured(snap_compare, app_on(HERE / "crash"), size, theme, "n", "n", "2", "enter")


@every_look
def test_inputs_of_a_part_among_several(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    keys = ("right_square_bracket",) * 3
    assert pictured(snap_compare, app_on(HERE / "tiny_parts"), size, theme, *keys, "n", "3")


@every_look
def test_the_list_of_runs(snap_compare: Any, tmp_path: Path, size: tuple[int, int], theme: str) -> None:
    root = runs_of(("qwen_full_static", "crash", "timeout", "tiny_parts"), tmp_path)
    for number, run in enumerate(sorted(root.iterdir())):
        _touch(run / "events.jsonl", NOW + number)
    assert pictured(snap_compare, app_on(None, root=root), size, theme)


@every_look
def test_help(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    assert pictured(snap_compare, app_on(HERE / "timeout"), size, theme, "question_mark")


@every_look
def test_a_run_in_progress(snap_compare: Any, tmp_path: Path, size: tuple[int, int], theme: str) -> None:
    run = recorded("qwen_full_static", tmp_path, share=0.72)
    lock = FolderLock(run)
    app = app_on(run)
    app.clock = _frozen(app)
    assert pictured(snap_compare, app, size, theme)
    lock.release()


def test_the_key_map_in_the_docs_is_the_one_of_the_program() -> None:
    sys.path.insert(0, str(REPOSITORY / "docs/tui"))
    try:
        from draw import with_key_map  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    page = (REPOSITORY / "docs/tui.md").read_text(encoding="utf-8")
    assert with_key_map(page) == page


def _touch(file: Path, at: float) -> None:
    os.utime(file, (at, at))


def _frozen(app: Any) -> Any:
    """Three seconds after the last event that was read."""

    def now() -> float:
        screen = app.screen
        attempts = screen.view.attempts if isinstance(screen, RunScreen) else ()
        return max((attempt.since for attempt in attempts), default=NOW) + 3

    return now

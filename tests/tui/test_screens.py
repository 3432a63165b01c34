"""Pictures of each screen at three sizes, in either theme; after a wanted change, run with --snapshot-update."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from textual.widgets import Input

from exportdoctor.core.codec import encode
from exportdoctor.core.protocol.numbers_ladder import LadderCause, LadderResult, LadderStage, LadderValue
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.store.lock import FolderLock
from exportdoctor_tui.actions.choices import PickerItem
from exportdoctor_tui.screens.picker import Picker
from exportdoctor_tui.screens.run import RunScreen
from exportdoctor_tui.themes import DARK, LIGHT, THEMES
from tui_recorded import HERE, NOW, REPOSITORY, app_on, recorded, runs_of, settled, view_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = ((80, 24), (120, 35), (200, 60))
LOOKS = [
    pytest.param(SIZES[0], DARK.name, id="80x24-dark"),
    pytest.param(SIZES[1], LIGHT.name, id="120x35-light", marks=pytest.mark.slow),
    pytest.param(SIZES[2], DARK.name, id="200x60-dark", marks=pytest.mark.slow),
]
"""`make quick` looks at the smallest terminal only; a theme changes colours alone."""

every_look = pytest.mark.parametrize(("size", "theme"), LOOKS)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The list of runs shows local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def pictured(
    snap_compare: Any, app: Any, size: tuple[int, int], theme: str, *keys: str, over: Picker | None = None
) -> bool:
    """Whether the screen after these keys, pressed in the screen `over` it if there is one, is as it was."""

    async def before(pilot: Any) -> None:
        await settled(pilot)
        if over is not None:
            await pilot.app.push_screen(over)
            over.query_one(Input).cursor_blink = False
            await pilot.pause()
        for key in keys:
            await pilot.press(key)
        for run in pilot.app.screen_stack:
            while isinstance(run, RunScreen) and not run.is_settled:
                await pilot.pause(0.05)
        await pilot.pause()

    app.theme = theme
    return bool(snap_compare(app, terminal_size=size, run_before=before))


def _values(scale: float) -> tuple[LadderValue, ...]:
    """Thirty values, of which the eighteenth is wrong by itself and all later ones because of it."""
    return tuple(
        LadderValue(
            name=f"linear_{place}",
            op="aten.linear.default",
            local=3e-2 if place == 17 else scale * (1 + place % 3),
            inherited=3e-2 * (1 + place % 2) if place >= 17 else 2 * scale * (1 + place),
            allowed=1e-5,
        )
        for place in range(30)
    )


LADDER = LadderResult(
    verdict="differs",
    target="model.py:build",
    part="vision",
    weights="random",
    dtype="float32",
    environment={"torch": "2.13.0"},
    stages=(
        LadderStage(
            name="exported program",
            before="eager",
            rows=(Agreement(inputs="3 x 4", kind="example", tolerance=1e-4),),
            values=_values(0.0)[:17],
        ),
        LadderStage(
            name="ONNX",
            before="exported program",
            rows=(Agreement(inputs="3 x 4", kind="example", max_abs=6e-2, tolerance=1e-4),),
            values=_values(2e-7),
            cause=LadderCause(
                kind="value",
                inputs="3 x 4",
                message="linear_17 differs by 0.03, where 1e-05 is allowed",
                node="linear_17",
                op="Gemm",
                module="blocks.4.mlp",
                module_class="MLP",
                file="model.py",
                line=41,
                source="return self.down(x)",
                right="reference",
            ),
        ),
    ),
)


@pytest.mark.slow
@every_look
def test_the_story_of_the_first_finding(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    assert pictured(snap_compare, app_on(HERE / "qwen"), size, theme)


@pytest.mark.slow
@every_look
def test_the_stack_of_a_crash_with_its_source(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    assert pictured(snap_compare, app_on(HERE / "crash"), size, theme, "n", "n", "2", "enter")


@pytest.mark.slow
@every_look
def test_the_cure_of_a_part(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    assert pictured(snap_compare, app_on(HERE / "qwen"), size, theme, "5")


@pytest.mark.slow
@every_look
def test_the_graph_that_leads_to_a_failure(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    assert pictured(snap_compare, app_on(HERE / "qwen"), size, theme, "n", "4")


@pytest.mark.slow
@every_look
def test_a_repro_script(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    assert pictured(snap_compare, app_on(HERE / "qwen"), size, theme, "n", "6", "enter")


@pytest.mark.slow
@every_look
def test_inputs_of_a_part_among_several(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    keys = ("right_square_bracket",) * 3
    assert pictured(snap_compare, app_on(HERE / "qwen"), size, theme, *keys, "n", "3")


@pytest.mark.slow
@every_look
def test_the_ladder_of_a_part_and_its_plot(
    snap_compare: Any, tmp_path: Path, size: tuple[int, int], theme: str
) -> None:
    run = recorded("qwen", tmp_path)
    part = view_of("qwen").parts[0].record.name
    (run / "numbers").mkdir()
    (run / "numbers" / f"{part}.json").write_bytes(encode(LADDER))
    assert pictured(snap_compare, app_on(run), size, theme, "9", "enter", "z")


@every_look
def test_the_list_of_runs(snap_compare: Any, tmp_path: Path, size: tuple[int, int], theme: str) -> None:
    root = runs_of(("qwen", "crash", "timeout"), tmp_path)
    for number, run in enumerate(sorted(root.iterdir())):
        _touch(run / "events.jsonl", NOW + number)
    assert pictured(snap_compare, app_on(None, root=root), size, theme)


@pytest.mark.slow
@every_look
def test_what_can_be_done(
    snap_compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], theme: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pictured(snap_compare, app_on(HERE / "qwen"), size, theme, "a")


@pytest.mark.slow
@every_look
def test_picking_shims(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    known = tuple(PickerItem(f"shim-{number}", f"exact · does something {number}") for number in range(9))
    pick = Picker("Try shims on full …", known, lambda: (), many=True)
    assert pictured(snap_compare, app_on(HERE / "qwen"), size, theme, "down", "space", over=pick)


@pytest.mark.slow
@every_look
def test_help(snap_compare: Any, size: tuple[int, int], theme: str) -> None:
    assert pictured(snap_compare, app_on(HERE / "timeout"), size, theme, "question_mark")


@pytest.mark.slow
@every_look
def test_a_run_in_progress(snap_compare: Any, tmp_path: Path, size: tuple[int, int], theme: str) -> None:
    run = recorded("qwen", tmp_path, share=0.72)
    lock = FolderLock(run)
    app = app_on(run)
    app.clock = _frozen(app)
    assert pictured(snap_compare, app, size, theme)
    lock.release()


@pytest.mark.long
@pytest.mark.slow
async def test_every_text_can_be_read_on_its_background() -> None:
    """A contrast of 4.5, which WCAG asks for; scroll bars and lines are no text."""
    app = app_on(HERE / "qwen")
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        for theme in THEMES:
            app.theme = theme.name
            for keys in (("1",), ("2", "enter", "escape"), ("4",), ("8",)):
                await pilot.press(*keys)
                await pilot.pause(0.1)
                assert _faint(app) == set(), (theme.name, keys)


def _faint(app: Any) -> set[str]:
    """Texts on the screen with too little contrast."""
    segments = (segment for strip in app.screen._compositor.render_strips() for segment in strip)
    return {
        segment.text for segment in segments if any(map(str.isalnum, segment.text)) and _contrast(segment.style) < 4.5
    }


def _contrast(style: Any) -> float:
    """The contrast of two colours as WCAG 2.1 defines it."""
    light, dark = sorted((_luminance(style.color.triplet), _luminance(style.bgcolor.triplet)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Any) -> float:
    parts = (value / 255 for value in colour)
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def test_the_key_map_in_the_docs_is_the_one_of_the_program() -> None:
    sys.path.insert(0, str(REPOSITORY / "tools"))
    try:
        from draw_tui import with_key_map
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

"""What a user does with the terminal interface, key by key, on recorded runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from exportdoctor.cli import verbs
from exportdoctor_tui.actions import ACTIONS, deeds
from exportdoctor_tui.screens.page import Page
from exportdoctor_tui.screens.run import RunScreen
from exportdoctor_tui.screens.runs import RunsScreen
from exportdoctor_tui.widgets.finding_pane import FindingPane
from exportdoctor_tui.widgets.module_tree import ModuleTree
from tui_recorded import HERE, app_on, recorded, runs_of, settled, shows, text_of

if TYPE_CHECKING:
    from pathlib import Path

QWEN = HERE / "qwen_full_static"


async def press(pilot: Any, *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await pilot.pause(0.02)


def cursor_of(app: Any) -> str:
    line = app.screen.query_one(ModuleTree).line
    assert line is not None
    return str(line.row.fqns[0])


async def test_the_culprit_is_on_the_first_screen() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(200, 50)) as pilot:
        await settled(pilot)
        assert cursor_of(app) == "model.visual"
        await shows(
            pilot,
            "get_vision_window_index, transformers/vision_utils.py:162, called by model.visual",
            "grid_t, grid_h, grid_w = int(grid_t), int(grid_h), int(grid_w)",
            "28 equal",
        )


async def test_find_the_next_culprit_and_read_its_stack() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "n", "2")
        assert cursor_of(app) == "model.visual.blocks.0.attn"
        await shows(pilot, "sdpa_attention_forward", absent=("ShapeEnv.evaluate_expr",))
        await press(pilot, "t")
        await shows(pilot, "ShapeEnv.evaluate_expr")
        await press(pilot, "t", "enter", "up")
        frame = app.screen.query_one(FindingPane).frame
        assert frame is not None
        assert frame.function.endswith("<listcomp>")


async def test_filter_as_one_types_and_drop_it() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        before = text_of(app)
        await press(pilot, "slash", *"merger")
        await shows(pilot, "merger", absent=("patch_embed",))
        await press(pilot, "escape")
        assert text_of(app) == before


async def test_equal_blocks_unfold_and_fold() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "slash", *"blocks", "enter", "escape", *["down"] * 3, "u")
        assert cursor_of(app) == "model.visual.blocks.0"
        await shows(pilot, "blocks.30")
        await press(pilot, "u")
        await shows(pilot, absent=("blocks.30",))


async def test_parts_are_tabs() -> None:
    app = app_on(HERE / "tiny_parts")
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "right_square_bracket")
        assert app.screen.browse.part == "text"
        await shows(pilot, "text exports as it is")
        await pilot.click("#parts", offset=(3, 0))
        assert app.screen.browse.part == "vision"


async def test_inputs_show_their_dynamic_dimensions() -> None:
    app = app_on(HERE / "tiny_parts")
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, *["right_square_bracket"] * 3, "3")
        await shows(pilot, "≈")


@pytest.mark.parametrize("name", ["crash", "timeout"])
async def test_a_crash_and_a_time_out_tell_their_story(name: str) -> None:
    app = app_on(HERE / name)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "n", "n")
        await shows(pilot, {"crash": "SIGSEGV", "timeout": "time.sleep(0.1)"}[name])


async def test_everything_that_is_copied_is_the_reports_text() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "y", "enter")
        assert app.clipboard.startswith("# Qwen2.5-VL-3B")
        assert "get_vision_window_index" in app.clipboard


async def test_the_editor_opens_at_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = tmp_path / "spy"
    spy.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\n')
    spy.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", str(spy))
    app = app_on(HERE / "crash")
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        # the headless driver cannot suspend: what would run is what the editor is told
        frame = app.screen.query_one(FindingPane).frame
        assert frame is not None
        await press(pilot, "e")
    from exportdoctor_tui.editor import editor_command

    source = app.sources.find(frame)
    assert source is not None
    assert editor_command(source, frame.line, os.environ) == (str(spy), "+18", str(source))


async def test_the_palette_reaches_a_finding() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "ctrl+p")
        await pilot.pause(0.2)
        await press(pilot, *"F2", "enter")
        await pilot.pause(0.3)
        await press(pilot, "enter") if not isinstance(app.screen, RunScreen) else None
        await pilot.pause(0.3)
        assert cursor_of(app) == "model.visual.blocks.0.attn"


async def test_help_names_every_key_of_the_screen() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 90)) as pilot:
        await settled(pilot)
        await press(pilot, "question_mark")
        assert isinstance(app.screen, Page)
        await shows(pilot, "Open the source in $EDITOR at the line")
        await press(pilot, "escape")
        assert isinstance(app.screen, RunScreen)


async def test_from_the_list_of_runs_into_one_and_back(tmp_path: Path) -> None:
    app = app_on(None, root=runs_of(("crash", "timeout"), tmp_path))
    async with app.run_test(size=(120, 30)) as pilot:
        await settled(pilot)
        await shows(pilot, "fixtures/segfault.py:build")
        await press(pilot, "enter")
        await settled(pilot)
        assert isinstance(app.screen, RunScreen)
        await press(pilot, "escape")
        assert isinstance(app.screen, RunsScreen)


async def test_no_run_yet_says_how_to_make_one(tmp_path: Path) -> None:
    app = app_on(None, root=tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot)
        await shows(pilot, "exportdoctor scan Qwen2.5-VL-3B")
        await press(pilot, "c")
        assert app.clipboard == "exportdoctor scan Qwen2.5-VL-3B"


async def test_a_terminal_too_small_says_so_and_recovers() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(50, 12)) as pilot:
        await settled(pilot)
        await shows(pilot, "too small")
        await pilot.resize_terminal(100, 30)
        await pilot.pause(0.1)
        await shows(pilot, "model")


async def test_zoom_gives_one_pane_the_screen() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await press(pilot, "enter", "z")
        await shows(pilot, absent=("patch_embed",))
        await press(pilot, "escape")
        await shows(pilot, "patch_embed")


async def test_a_screen_is_saved_as_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path))
    app = app_on(QWEN)
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot)
        await press(pilot, "ctrl+s")
        saved = list((tmp_path / "screens").glob("*.svg"))
        assert len(saved) == 1
        assert "get_vision_window_index" in saved[0].read_text()


async def test_a_cut_off_run_offers_to_be_resumed(tmp_path: Path) -> None:
    app = app_on(recorded("qwen_full_static", tmp_path, share=0.8))
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, "cut off")
        offered = app.screen.deeds()
        assert offered[0].command[-4:] == ("scan", "--resume", str(tmp_path / "qwen_full_static"), "--quiet")


async def test_long_work_shows_itself_and_can_be_cancelled(tmp_path: Path) -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        assert app.start_job("Wait", (sys.executable, "-c", "import time; time.sleep(60)"))
        app.screen.draw_job()
        await pilot.pause(0.3)
        await shows(pilot, "running  Wait")
        await press(pilot, "n")
        assert cursor_of(app) == "model.visual.blocks.0.attn"
        await press(pilot, "x")
        for _ in range(100):
            await pilot.pause(0.05)
            if app.job is not None and app.job.view().state == "cancelled":
                break
        await pilot.pause(0.6)
        await shows(pilot, "cancelled  Wait")


def test_every_action_offered_is_a_verb_that_exists() -> None:
    assert {action.verb for action in ACTIONS} <= {verb.name for verb in verbs.VERBS}


async def test_a_rescan_repeats_the_options_of_the_run() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        deed = deeds(app.screen.view, app.screen.selection)[0]
        assert deed.command[3:8] == ("scan", "Qwen2.5-VL-3B", "--part", "full", "--static")
        assert "--exhaustive" in deed.command
        assert deed.opens is not None

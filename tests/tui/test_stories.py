"""What a user does with the terminal interface, key by key, on recorded runs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from msgspec.structs import replace as replace_struct
from rich.cells import cell_len
from textual.content import Content
from textual.style import Style
from textual.widgets import Input

from exportdoctor.cli.main import exportdoctor
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.report import wording
from exportdoctor.store.journal import NAME, read_events
from exportdoctor.store.lock import FolderLock
from exportdoctor_tui.actions.choices import PickerItem
from exportdoctor_tui.actions.commands import CommandLine, available_commands
from exportdoctor_tui.pages import run_status
from exportdoctor_tui.pages.copies import copies
from exportdoctor_tui.pages.cure_page import cure
from exportdoctor_tui.pages.details import repro
from exportdoctor_tui.pages.story import story
from exportdoctor_tui.screens.dialogs import Page
from exportdoctor_tui.screens.picker import Picker
from exportdoctor_tui.screens.run import RunScreen
from exportdoctor_tui.screens.run_list import RunListScreen
from exportdoctor_tui.state.navigation import Position, next_failure
from exportdoctor_tui.state.outline import failures
from exportdoctor_tui.state.run_follower import RunFold
from exportdoctor_tui.state.run_view import RunView, finding_for
from exportdoctor_tui.state.selection import TITLES, Selection
from exportdoctor_tui.widgets.bars import Tab, TabBar
from exportdoctor_tui.widgets.finding_pane import FindingPane
from exportdoctor_tui.widgets.module_tree import ModuleTree
from exportdoctor_tui.widgets.texts import TextPage, wrap_hanging
from tui_recorded import HERE, NOW, app_on, interrupted, recorded, run_screen, runs_of, settled, shows, text_of, view_of

QWEN = HERE / "qwen"


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
            "get_vision_window_index (transformers/vision_utils.py:162), called by model.visual",
            "grid_t, grid_h, grid_w = int(grid_t), int(grid_h), int(grid_w)",
            "28 identical",
        )


@pytest.mark.slow
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


@pytest.mark.slow
async def test_filter_as_one_types_and_drop_it() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        before = text_of(app)
        await press(pilot, "slash", *"merger")
        await shows(pilot, "merger", absent=("patch_embed",))
        await press(pilot, "escape")
        await shows(pilot, before)


@pytest.mark.slow
async def test_equal_blocks_unfold_and_fold() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "slash", *"blocks", "enter", "escape", *["down"] * 3, "u")
        assert cursor_of(app) == "model.visual.blocks.0"
        await shows(pilot, "blocks.30")
        await press(pilot, "u")
        await shows(pilot, absent=("blocks.30",))


@pytest.mark.slow
async def test_parts_are_tabs() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "right_square_bracket")
        assert run_screen(app).position.part == "text"
        await shows(pilot, "text exports without shims")
        await pilot.click("#parts", offset=(3, 0))
        assert run_screen(app).position.part == "vision"


@pytest.mark.slow
async def test_inputs_show_their_dynamic_dimensions() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, *["right_square_bracket"] * 3, "3")
        await shows(pilot, "≈")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["crash", "timeout"])
async def test_a_crash_and_a_time_out_tell_their_story(name: str) -> None:
    app = app_on(HERE / name)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "n", "n")
        await shows(pilot, {"crash": "SIGSEGV", "timeout": "time.sleep(0.1)"}[name])


@pytest.mark.slow
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
        # the headless driver cannot suspend: what would run is the editor's command line
        frame = app.screen.query_one(FindingPane).frame
        assert frame is not None
        await press(pilot, "e")
    from exportdoctor_tui.actions.editor import editor_command

    source = app.sources.find(frame)
    assert source is not None
    assert editor_command(source, frame.line, os.environ) == (str(spy), "+18", str(source))


@pytest.mark.slow
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


@pytest.mark.slow
async def test_the_palette_has_everything_that_can_be_done_and_every_finding() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert {command.title for command in run_screen(app).commands()} <= set(titles)
        assert {title[:2] for title in titles} >= {"F1", "F2", "F3", "F4", "F5"}


@pytest.mark.slow
async def test_help_names_every_key_of_the_screen() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 90)) as pilot:
        await settled(pilot)
        await press(pilot, "question_mark")
        assert isinstance(app.screen, Page)
        await shows(pilot, "Open the source, script or log in $EDITOR")
        await press(pilot, "escape")
        assert isinstance(app.screen, RunScreen)


@pytest.mark.slow
async def test_from_the_list_of_runs_into_one_and_back(tmp_path: Path) -> None:
    app = app_on(None, root=runs_of(("crash", "timeout"), tmp_path))
    async with app.run_test(size=(120, 30)) as pilot:
        await settled(pilot)
        await shows(pilot, "fixtures/segfault.py:build")
        await press(pilot, "enter")
        await settled(pilot)
        assert isinstance(app.screen, RunScreen)
        first = run_screen(app).path
        await press(pilot, "escape", "escape")
        assert isinstance(app.screen, RunScreen)
        await press(pilot, "backspace")
        assert isinstance(app.screen, RunListScreen)
        await press(pilot, "j", "enter")
        await settled(pilot)
        assert run_screen(app).path != first


async def test_no_run_yet_says_how_to_make_one(tmp_path: Path) -> None:
    app = app_on(None, root=tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot)
        await shows(pilot, "exportdoctor scan Qwen2.5-VL-3B")
        await press(pilot, "c")
        assert app.clipboard == "exportdoctor scan Qwen2.5-VL-3B"


@pytest.mark.slow
async def test_a_terminal_too_small_says_so_and_recovers() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(50, 12)) as pilot:
        await settled(pilot)
        await shows(pilot, "too small")
        await pilot.resize_terminal(100, 30)
        await pilot.pause(0.1)
        await shows(pilot, "model")


@pytest.mark.slow
async def test_zoom_gives_one_pane_the_screen() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await press(pilot, "enter", "z")
        await shows(pilot, absent=("patch_embed",))
        await press(pilot, "escape")
        await shows(pilot, "patch_embed")


async def test_a_screen_is_saved_as_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = app_on(QWEN)
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot)
        await press(pilot, "ctrl+s")
        saved = list(tmp_path.glob("exportdoctor-*.svg"))
        assert len(saved) == 1
        assert "get_vision_window_index" in saved[0].read_text()


async def test_a_cut_off_run_offers_to_be_resumed(tmp_path: Path) -> None:
    app = app_on(recorded("qwen", tmp_path, share=0.8))
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, "cut off")
        offered = run_screen(app).commands()
        assert offered[0].argv[-4:] == ("scan", "--resume", str(tmp_path / "qwen"), "--quiet")


@pytest.mark.night
async def test_long_work_shows_itself_and_can_be_cancelled(tmp_path: Path) -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        assert app.start_job("Wait", (sys.executable, "-c", "import time; time.sleep(60)"))
        await pilot.pause(0.6)
        await pilot.pause(0.3)
        await shows(pilot, "running  Wait")
        await press(pilot, "n")
        assert cursor_of(app) == "model.visual.blocks.0.attn"
        await press(pilot, "x")
        for _ in range(100):
            await pilot.pause(0.05)
            if app.job is not None and app.job.state == "cancelled":
                break
        await pilot.pause(0.6)
        await shows(pilot, "cancelled  Wait")


@pytest.mark.slow
async def test_a_run_that_its_user_interrupted_tells_what_it_found(tmp_path: Path) -> None:
    app = app_on(interrupted(tmp_path))
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, "cut off", "interrupted", "get_vision_window_index", "362/362")


@pytest.mark.parametrize("part", ["vision", "full"])
def test_every_command_that_is_offered_is_one_that_the_command_line_takes(part: str, tmp_path: Path) -> None:
    cut = RunFold(interrupted(tmp_path))
    cut.take(read_events(cut.path / NAME))
    picked = {"": (), "shims": ("no-grad", "strict"), "shim": ("no-grad",), "run": ("x",)}
    for view in (view_of("qwen"), cut.view(held=False)):
        for command in available_commands(view, selected(view, part)):
            argv = command.argv_with(picked[command.needs])
            assert argv[:3] == (sys.executable, "-m", "exportdoctor")
            parse(argv[3:])


def parse(words: tuple[str, ...]) -> None:
    """Parse a command line, and run nothing. Raises click.UsageError where it is refused."""
    command: click.Command = exportdoctor
    context: click.Context | None = None
    rest = list(words)
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, obj=words)
        found = command.get_command(context, rest[0])
        assert found is not None, words
        command, rest = found, rest[1:]
    command.make_context(words[0], rest, parent=context)


def test_a_rescan_repeats_the_options_of_the_run() -> None:
    view = view_of("qwen")
    assert view.started is not None
    started = replace_struct(
        view.started,
        target=replace_struct(view.started.target, options=BuildOptions(static=True, image_size=(476, 672))),
        options=ScanOptions(exhaustive=True, cure=False, timeout=9.0, jobs=3, shim_files=("/x/mine.py",)),
    )
    offered = available_commands(replace(view, started=started), selected(view, "full"))
    command = next(command for command in offered if "Rescan full" in command.title)
    assert command.argv[3:-1] == (
        "scan", "Qwen2.5-VL-3B", "--part", "full", "--image-size", "476x672", "--static", "--exhaustive",
        "--no-cure", "--shims", "/x/mine.py", "--timeout", "9", "--jobs", "3", "--no-cache", "--quiet", "--out",
    )  # fmt: skip
    assert command.opens is not None


def selected(view: RunView, part: str) -> Selection:
    """The first failure of a part, as the cursor would be on it."""
    shown = next(each for each in view.parts if each.record.name == part)
    row = next(failures(shown.rows), (shown.rows[0],))[-1]
    return Selection(view=view, part=shown, row=row, finding=finding_for(view, shown, row))


@pytest.mark.slow
async def test_the_cure_tells_before_and_after_with_its_proof_and_what_to_paste() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(200, 50)) as pilot:
        await settled(pilot)
        await shows(pilot, "vision exports with 2 shims (changes the inputs)")
        await press(pilot, "5")
        await shows(
            pilot,
            "before  ✗ F1",
            "after   ✓ exports, max |Δ|",
            "1. precompute-grid (changes the inputs)",
            "2. block-diagonal-attention (exact)",
            "Verified on a small",
            "exportdoctor export Qwen2.5-VL-3B --part vision --weights FOLDER --to pt2 -o vision.pt2",
            "→ precompute-grid  gets past this; next failure F2",
            "✓ precompute-grid+block-diagonal-attention  works",
            "○ check-as-assertion  not applicable",
        )
        await press(pilot, "tab", "end")
        await shows(pilot, "with apply_shims(shims, call) as given:", 'find("block-diagonal-attention")')
        await press(pilot, "y")
        await shows(pilot, "The command that exports the part with shims", "The shims as Python code")


@pytest.mark.slow
async def test_the_graph_tells_what_leads_to_the_failure() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(200, 50)) as pilot:
        await settled(pilot)
        await press(pilot, "n", "4")
        await shows(pilot, "in the order of tracing", "lengths = aten.sub.Tensor(slice_5, slice_6)", "▶ item")


async def test_a_finding_without_a_repro_says_how_to_make_one() -> None:
    app = app_on(HERE / "crash")
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "6")
        await shows(pilot, "F1 has no repro script yet", "exportdoctor repro")


def test_of_a_module_in_memory_no_page_names_a_command_that_would_build_it() -> None:
    view = view_of("crash")
    assert view.started is not None
    started = replace_struct(view.started, options=ScanOptions(cure=False))
    view = replace(view, target=replace_struct(view.target, in_memory=True), started=started)
    shown = selected(view, view.parts[0].record.name)
    shown = replace(shown, part=replace(shown.part, record=replace_struct(shown.part.record, prescription=None)))
    for page in (repro(shown).plain, cure(shown).plain):
        assert "scan FILE.py:FUNCTION" in page
        assert "exportdoctor repro" not in page
        assert "Press a" not in page
        assert "--no-cure" not in page


@pytest.mark.slow
async def test_a_repro_is_shown_and_copied_whole() -> None:
    app = app_on(QWEN)
    script = (QWEN / "repros/F2.py.txt").read_text()
    async with app.run_test(size=(160, 60)) as pilot:
        await settled(pilot)
        await press(pilot, "n", "6")
        await shows(
            pilot,
            "40 lines, needs only torch, verified: exportdoctor repro",
            "qwen2.5-vl-3b-sf F2",
            "class Model(torch.nn.Module):",
        )
        selection = run_screen(app).selection
        assert selection is not None
        number = [title for title, _ in copies(selection)].index("The repro script")
        await press(pilot, "y", *["down"] * number, "enter")
        assert app.clipboard == script


@pytest.mark.slow
async def test_picking_filters_as_one_types_and_marks_several() -> None:
    app = app_on(QWEN)
    known, more = (
        (PickerItem("b-two", "tried"), PickerItem("a-one")),
        (PickerItem("a-one", "exact"), PickerItem("c-three", "[red]x")),
    )
    chosen: list[tuple[str, ...] | None] = []
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        app.push_screen(Picker("Which?", known, lambda: more, many=True), chosen.append)
        await shows(pilot, "b-two", "c-three", "[red]x", "exact", absent=("looking for more",))
        await press(pilot, *"one", "space", *["backspace"] * 3, "down")
        await shows(pilot, "● a-one")
        await press(pilot, "space", "enter")
        assert chosen == [("a-one", "c-three")]


@pytest.mark.slow
async def test_a_pick_whose_list_cannot_be_had_says_why_and_offers_what_is_known() -> None:
    def none() -> tuple[PickerItem, ...]:
        raise OSError("the list could not be had")

    app = app_on(QWEN)
    chosen: list[tuple[str, ...] | None] = []
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        app.push_screen(Picker("Which?", (PickerItem("a"), PickerItem("b")), none, many=False), chosen.append)
        await shows(pilot, "the list could not be had")
        await press(pilot, "down", "enter")
        assert chosen == [("b",)]


@pytest.mark.slow
async def test_output_that_is_the_result_is_shown_when_it_is_there() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        code = "print('--- a\\n+++ b\\n@@ -1 +1 @@\\n-old [b]\\n+new')"
        run_screen(app).start(CommandLine(title="Show it", argv=(sys.executable, "-c", code), shows=True))
        await shows(pilot, "Show it", "-old [b]", "+new")
        assert isinstance(app.screen, Page)
        await press(pilot, "escape")
        await shows(pilot, "done  Show it")


@pytest.mark.slow
async def test_a_command_that_cannot_do_it_says_so_with_its_last_words() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(160, 40)) as pilot:
        await settled(pilot)
        argv = (sys.executable, "-m", "exportdoctor", "runs", "--nonsense")
        run_screen(app).start(CommandLine(title="Nonsense", argv=argv))
        await shows(pilot, "failed  Nonsense", "exit code 2", "--nonsense")


async def test_a_click_on_the_last_line_is_its_key() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await pilot.click("KeyBar", offset=(14, 0))
        await pilot.pause(0.1)
        assert cursor_of(app) == "model.visual.blocks.0.attn"


@pytest.mark.slow
async def test_a_move_to_a_failure_drops_the_filter_from_the_screen() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        await press(pilot, "slash", "F", "3", "enter", "n")
        await settled(pilot)
        assert not app.screen.query_one("#filter").display
        assert run_screen(app).position.words == ()
        await press(pilot, "slash")
        assert app.screen.query_one("#filter", Input).value == ""


@pytest.mark.slow
async def test_z_in_the_tree_shows_the_tree_alone() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        await press(pilot, "z")
        assert not app.screen.query_one(FindingPane).display
        assert app.screen.query_one(ModuleTree).size.width > 110
        await press(pilot, "z", "tab", "z")
        assert app.screen.query_one(FindingPane).display
        assert not app.screen.query_one(ModuleTree).display


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_every_tab_can_be_seen_and_clicked(size: tuple[int, int]) -> None:
    app = app_on(HERE / "crash")
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        await press(pilot, "n", "n")
        await settled(pilot)
        last = app.screen.query_one(FindingPane)._drawn[0].tabs()[-1]  # type: ignore[index]
        bar = app.screen.query_one("#tabs", TabBar)
        text = bar.render().plain
        assert len(text.rstrip()) <= bar.content_size.width
        await pilot.click("#tabs", offset=(len(text.rstrip()) - 1, 0))
        await settled(pilot)
        assert run_screen(app).position.tab == last


@pytest.mark.slow
async def test_a_filter_that_nothing_matches_says_so() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(100, 36)) as pilot:
        await settled(pilot)
        await press(pilot, "slash", *"zzz")
        await settled(pilot)
        await shows(pilot, "No submodule matches 'zzz'", "esc clears the filter")


@pytest.mark.long
@pytest.mark.slow
async def test_a_page_is_searched_where_it_has_the_focus() -> None:
    """Story: a script or a log of many lines; find the word in it."""
    app = app_on(QWEN)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await press(pilot, "n", "6", "enter", "slash", *"export.e")
        page = app.screen.query_one(TextPage)
        in_sight = [page.render_line(row).text for row in range(page.size.height)]
        assert any("torch.export.export(" in text for text in in_sight)
        await shows(pilot, "rotary_pos_emb")  # the tree is not filtered
        await press(pilot, *"zzz", "enter")
        assert any("is not on this page" in note.message for note in app._notifications)
        await press(pilot, "escape")
        assert page.has_focus
        assert not app.screen.query_one("#filter").display


@pytest.mark.slow
async def test_the_list_of_findings_leads_to_one() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        await press(pilot, "f")
        await shows(pilot, "F1 vision: get_vision_window_index", "Same failure as F1, in part full.")
        await press(pilot, "j", "enter")
        await settled(pilot)
        assert cursor_of(app) == "model.visual.blocks.0.attn"


async def test_the_explanation_of_a_finding_shows_rewrites_as_diffs() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 60)) as pilot:
        await settled(pilot)
        await press(pilot, "8")
        await shows(pilot, "During export, tensors are fake", "-    longest = int(lengths.max())", "8 Why")


@pytest.mark.slow
async def test_the_frames_of_a_stack_keep_their_place() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        await press(pilot, "2")
        await shows(pilot, "vision_utils.py:162", "● modeling_qwen2_5_vl.py:")
        await press(pilot, "enter")
        await shows(pilot, "j Frame", "e Edit", "int(grid_h), int(grid_w)", absent=("enter Read",))  # wrapped, not cut
        await press(pilot, "tab")
        await shows(pilot, "/ Search", absent=("j Frame",))
        await press(pilot, "slash", *"window_index_id", "enter")
        await shows(pilot, "enter Keep, or next match", absent=("is not on this page",))


def test_failures_are_visited_by_the_numbers_of_their_findings() -> None:
    view = view_of("qwen")
    position = Position()
    visited: list[str] = []
    for _ in range(5):
        position = next_failure(view, position, step=1)
        part = view.part(position.part)
        assert part is not None
        visited.append(next(path.rows[-1].finding or "" for path in part.row_paths if path.key == position.cursor))
    assert sorted(visited) == ["F1", "F2", "F3", "F4", "F5"]
    assert visited == sorted(visited[:2]) + sorted(visited[2:])  # two in vision, three in full
    hidden = {finding.id: finding.behind for finding in view.findings.values() if finding.behind}
    assert all(visited.index(first) < visited.index(late) for late, first in hidden.items())
    back = [next_failure(view, position, step=-1)]
    assert back[0].cursor != position.cursor


def test_a_note_takes_one_line_and_is_whole_on_the_first_page() -> None:
    view = replace(view_of("qwen"), notes=("a note " * 40,))
    lines = run_status.status(view, 0.0, 60).plain.splitlines()
    assert len(lines) == 2
    assert len(lines[1]) <= 60
    part = view.parts[0]
    assert ("a note " * 40).strip() in story(Selection(view=view, part=part, row=part.rows[0])).plain


def test_upstream_issues_are_links_and_the_log_has_its_own_page() -> None:
    view = view_of("qwen")
    chosen = selected(view, "vision")
    assert chosen.finding is not None
    assert chosen.finding.known_issues
    page = story(chosen)
    links = {span.style.link for span in page.spans if isinstance(span.style, Style) and span.style.link}
    assert links == {wording.issue_link(issue.link) for issue in chosen.finding.known_issues}
    assert "Log: " not in story(replace(chosen, finding=replace_struct(chosen.finding, log="/x/y.log"))).plain


async def test_the_log_is_opened_in_the_editor(tmp_path: Path) -> None:
    run = recorded("crash", tmp_path)
    app = app_on(run)
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        await press(pilot, "7")
        pane = app.screen.query_one(FindingPane)
        assert pane.file is not None
        assert pane.file.parent.name == "logs"


def test_a_long_word_is_broken_after_a_separator() -> None:
    text = wrap_hanging(Content("it is at transformers/models/one/modeling_one.py:313 in it"), 30)
    assert text.plain.splitlines() == ["it is at", "transformers/models/one/", "modeling_one.py:313 in it"]
    wide = wrap_hanging(Content("漢字" * 20), 30).plain.splitlines()
    assert "".join(wide) == "漢字" * 20
    assert max(map(cell_len, wide)) <= 30


@pytest.mark.slow
async def test_the_list_of_runs_is_filtered_and_a_run_deleted(tmp_path: Path) -> None:
    runs_of(("crash", "timeout"), tmp_path)
    recorded("qwen", tmp_path, share=0.5)
    app = app_on(None, root=tmp_path)
    async with app.run_test(size=(120, 30)) as pilot:
        await settled(pilot)
        await shows(pilot, "· vision", "cut off")  # parts without a verdict
        await press(pilot, "slash", *"segfault")
        await shows(pilot, "fixtures/segfault.py:build", absent=("Qwen2.5-VL-3B",))
        await press(pilot, "enter", "d", "down", "enter")
        await shows(pilot, "No run matches 'segfault'")
        assert not (tmp_path / "crash").exists()
        await press(pilot, "escape")
        await shows(pilot, "Qwen2.5-VL-3B")


@pytest.mark.slow
async def test_the_chosen_set_of_shims_is_among_those_that_were_tried() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(200, 60)) as pilot:
        await settled(pilot)
        await press(pilot, "5")
        await settled(pilot)
        selection = run_screen(app).selection
        assert selection is not None
        assert selection.part.record.prescription is not None
        chosen = " + ".join(selection.part.record.prescription.shims)
        tried = app.screen.query_one(FindingPane).text.plain.partition("Tried on")[2].partition("In Python")[0]
        assert tried.count(f"✓ {chosen}") == 1


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("▶ 162 ┃ grid_t, grid_h = int(g)", ["▶ 162 ┃ grid_t, ", "        grid_h = ", "        int(g)"]),
        ("1. aa bb cc dd ee ff gg", ["1. aa bb cc dd ee ", "   ff gg"]),
        ("short", ["short"]),
        ("x" * 25, ["x" * 18, "x" * 7]),
    ],
)
def test_what_is_wrapped_stays_in_its_block(text: str, lines: list[str]) -> None:
    found = [each.plain for each in wrap_hanging(Content(text), 18).split("\n")]
    assert [each.rstrip() for each in found] == [each.rstrip() for each in lines]
    assert all(len(each.rstrip()) <= 18 for each in found)


@pytest.mark.slow
async def test_all_nine_tabs_are_in_sight_at_120_columns() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        bar = app.screen.query_one("#tabs", TabBar)
        names = (*TITLES.values(),)
        tabs = tuple(Tab(name, f"{number} {name}", short=f"{number} {name}") for number, name in enumerate(names, 1))
        for active in names:
            bar.show(tabs, active)
            await pilot.pause(0.02)
            strip = bar.render().plain
            assert all(f"{number} {name[:3]}" in strip for number, name in enumerate(names, 1)), strip
            assert len(strip.rstrip()) <= bar.content_size.width


@pytest.mark.slow
async def test_quitting_while_a_command_runs_stays_unless_another_choice_is_made() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        assert app.start_job("Wait", ("sleep", "60"))
        await press(pilot, "q")
        await shows(pilot, "Still running: Wait", "Stop it and quit")
        await press(pilot, "enter")
        assert app.is_running
        assert isinstance(app.screen, RunScreen)
        assert app.job is not None
        assert app.job.state == "running"
        app.job.cancel()
        app.job.wait(60)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"last": "51 s  11 lines after 36 candidates"}, "running  Repro · 54 s  11 lines after 36 candidates"),
        ({"state": "done", "code": 0, "done": "6 shows it", "last": "saved in /a"}, "done  Repro  6 shows it"),
        ({"state": "done", "code": 1, "shows": True, "last": "> 1 (unhinted: u0 > 1)"}, "done  Repro"),
        ({"state": "failed", "code": 2, "last": "exportdoctor: no F9"}, "failed  Repro · exit code 2  no F9"),
    ],
)
def test_the_line_of_a_command_has_one_clock_and_what_came_of_it(job: dict[str, Any], said: str) -> None:
    given = {"state": "running", "code": None, "begun": 0.0, "shows": False, "done": "", "title": "Repro", **job}
    line = run_status.job_line(SimpleNamespace(**given, last_line=lambda: job["last"]), 54.0).plain  # type: ignore[arg-type]
    assert line.removesuffix("  x cancels · o output").removesuffix("  o output") == said


async def test_while_the_model_is_built_the_screen_says_what_comes_and_where_it_is_kept(tmp_path: Path) -> None:
    run = recorded("qwen", tmp_path, share=0)
    lines = (QWEN / NAME).read_bytes().splitlines(keepends=True)
    opened = next(place for place, text in enumerate(lines) if b'"target_opened"' in text)
    (run / NAME).write_bytes(b"".join(lines[:opened]))
    lock = FolderLock(run)
    app = app_on(run)
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        await shows(pilot, "1/3 build", "torch is imported and the model is built", str(run)[-20:])
    lock.release()


@pytest.mark.slow
def test_progress_names_the_phase_and_counts_what_is_tried() -> None:
    """The time left is that of the phase: nobody knows how long a search for shims takes."""
    seen: dict[str, str] = {}
    fold = RunFold(QWEN)
    for event in read_events(QWEN / NAME):
        fold.take((event,))
        said = wording.progress_counts(fold.state)
        if seen.setdefault(said[:3], said) is said and said[:3] == "3/3":
            begun = run_status.status(fold.view(held=True), NOW, 120).plain
        if fold.state.finished is None and (left := wording.time_left(fold.state, 9.0)):
            assert left.endswith(" left in this phase")
            assert said.startswith("2/3 diagnose: ")
    assert list(seen) == ["1/3", "2/3", "3/3"]
    assert seen["3/3"].startswith("3/3 cure: ")
    assert "of shims tried" in seen["3/3"]
    assert "3/3 cure: " in begun
    assert "of shims tried" in begun


def test_what_was_written_can_be_copied(tmp_path: Path) -> None:
    view = replace(view_of("qwen"), path=str(tmp_path))
    chosen = selected(view, "vision")
    offered = {command.title: command.done for command in available_commands(view, chosen)}
    assert offered["Write F1 as an issue: script, text, log"] == f"y copies its folder: {tmp_path}/bundles/F1"
    for title in (title for title in offered if title.startswith("Write this run as")):
        assert offered[title] == str(Path.cwd() / title.rpartition("./")[2])
    assert "The folder of the issue" not in dict(copies(chosen))
    (tmp_path / "bundles" / "F1").mkdir(parents=True)
    texts = dict(copies(chosen))
    assert texts["The folder of the issue"] == f"{tmp_path}/bundles/F1"
    assert texts["The folder of this run"] == str(tmp_path)
    assert any(text.startswith("https://") for title, text in texts.items() if title.startswith("The address of"))


def test_what_is_written_takes_no_name_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    view = view_of("qwen")
    chosen = selected(view, "vision")

    def written() -> list[str]:
        titles = (command.title for command in available_commands(view, chosen))
        return [title.rpartition("./")[2] for title in titles if "./" in title]

    first = written()
    assert first
    for name in first:
        (tmp_path / name).write_text("mine")
    second = written()
    assert [name.replace("-2.", ".") for name in second] == first
    assert not set(first) & set(second)
    (tmp_path / second[0]).symlink_to(tmp_path / "nowhere")
    assert written()[0].partition(".")[0].endswith("-3") or "-3." in written()[0]


@pytest.mark.slow
async def test_a_key_that_has_nothing_to_do_says_why() -> None:
    app = app_on(QWEN)
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        await press(pilot, "u", "9", "x", "o", "escape")
        said = [note.message for note in app._notifications]
        assert said[0] == "This line is one submodule"
        assert said[1].endswith("nothing for this submodule")
        assert said[2:] == ["No command is running", "No command was started yet", "backspace goes to the list of runs"]

"""Properties of the terminal interface's pure half: folding, outline, navigation, columns, sources."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace as replace_struct
from rich.cells import cell_len

from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX
from exportdoctor.core.records.outcome import Frame, Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.run.events import FindingMade, ModuleJudged, PartFinished, ProbeFinished, ProbeStarted
from exportdoctor.report import wording
from exportdoctor.report.source_lines import Sources
from exportdoctor.store.journal import NAME, read_events
from exportdoctor_tui.pages.story import story
from exportdoctor_tui.state import navigation
from exportdoctor_tui.state.navigation import Position
from exportdoctor_tui.state.outline import Expansion, Line, failures, key_of, lines_of, members_of
from exportdoctor_tui.state.run_follower import RunFold
from exportdoctor_tui.state.run_view import running_attempt
from exportdoctor_tui.state.selection import Selection
from exportdoctor_tui.widgets.tree_columns import columns_for, heading, pieces
from tui_recorded import HERE, REPOSITORY, view_of

if TYPE_CHECKING:
    from pathlib import Path

QWEN = "qwen"


def started(name: str = QWEN) -> Position:
    return navigation.start_position(view_of(name), Position())


def under_cursor(position: Position, name: str = QWEN) -> Line:
    return next(line for line in navigation.current_lines(view_of(name), position) if line.key == position.cursor)


@pytest.mark.slow
@pytest.mark.parametrize("name", [QWEN, "crash", "timeout"])
def test_one_event_at_a_time_gives_the_picture_of_all_at_once(name: str) -> None:
    events = read_events(HERE / name / NAME)
    step_by_step = RunFold(HERE / name)
    for number, event in enumerate(events):
        step_by_step.take((event,))
        if number % 50 == 0:
            step_by_step.view(held=True)
    one, all_ = step_by_step.view(held=False), view_of(name)
    assert [part.record for part in one.parts] == [part.record for part in all_.parts]
    assert [part.rows for part in one.parts] == [part.rows for part in all_.parts]
    assert (one.findings, one.stats, one.status) == (all_.findings, all_.stats, all_.status)


def test_any_prefix_of_the_events_has_a_picture() -> None:
    events = read_events(HERE / QWEN / NAME)
    folding = RunFold(HERE / QWEN)
    for event in events:
        folding.take((event,))
    assert folding.view(held=True).parts
    assert RunFold(HERE / QWEN).view(held=True).parts == ()


def test_the_cursor_begins_on_the_first_failure_and_its_path_is_open() -> None:
    assert under_cursor(started()).row.fqns == ("model.visual",)


def test_the_cursor_begins_on_the_failure_that_hides_the_others() -> None:
    view = view_of(QWEN)
    position = navigation.start_position(view, Position(part="full"))
    assert position.cursor == "model.visual"
    first = next(finding for finding in view.findings.values() if finding.part == "full" and finding.behind is None)
    assert first.module == "model.visual"


def test_next_failure_visits_each_once_in_all_parts_and_comes_round() -> None:
    view, position, seen = view_of(QWEN), started(), []
    for _ in range(sum(len(list(failures(part.rows))) for part in view.parts)):
        seen.append((position.part, position.cursor))
        position = navigation.next_failure(view, position, step=1)
    assert (position.part, position.cursor) == seen[0]
    assert len(set(seen)) == len(seen)
    back = navigation.next_failure(view, position, step=-1)
    assert (back.part, back.cursor) == seen[-1]


def test_an_unfolded_group_shows_each_member_with_what_is_below_it() -> None:
    view = view_of(QWEN)
    blocks = next(line for line in navigation.current_lines(view, started()) if len(line.row.fqns) == 28)
    members = members_of(blocks.row)
    assert [member.fqns[0] for member in members] == list(blocks.row.fqns)
    for member in members:
        assert all(child.fqns[0].startswith(f"{member.fqns[0]}.") for child in member.children)
        assert all(fqn in view.parts[0].records for child in member.children for fqn in child.fqns)


def test_folding_twice_gives_back_the_first_lines() -> None:
    view, position = view_of(QWEN), started()
    for line in navigation.current_lines(view, position):
        for step in (navigation.toggle, navigation.toggle_members):
            once = step(position, line)
            again = next(each for each in navigation.current_lines(view, once) if each.key == line.key)
            if line.row.children:
                assert navigation.current_lines(view, step(once, again)) == navigation.current_lines(view, position)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["attn", "F2", "blocks.3", "rmsnorm", "fails itself", "cured", "Qwen2_5_VLMLP mlp"])
def test_a_filter_leaves_matches_and_the_paths_to_them(words: str) -> None:
    view = view_of(QWEN)
    wanted = tuple(words.lower().split())
    lines = navigation.current_lines(view, replace(started(), words=wanted))
    assert lines
    deepest = [line for line, after in zip(lines, (*lines[1:], None)) if after is None or after.depth <= line.depth]
    for line in deepest:
        row = line.row
        for fqn in row.fqns:
            verdict = f"{row.status} {wording.STATUS_WORDS[row.status]} {view.parts[0].look(row)}"
            text = f"{fqn} {row.class_name} {verdict} {row.finding}".lower()
            assert all(word in text for word in wanted)


def test_a_filter_that_matches_nothing_leaves_nothing() -> None:
    assert navigation.current_lines(view_of(QWEN), replace(started(), words=("nosuchmodule",))) == ()


def test_everything_open_shows_every_row_once() -> None:
    view = view_of(QWEN)
    full = navigation.start_position(view, Position(part="full"))
    lines = navigation.current_lines(view, navigation.expand_all(view, full))
    assert len({line.key for line in lines}) == len(lines)
    shown = {fqn for line in lines for fqn in line.row.fqns}
    assert {"model.visual.blocks.0.attn.qkv", "model.language_model.layers.0.mlp.act_fn"} <= shown


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 56, 78, 94, 120, 200])
def test_every_line_fills_its_width_exactly_and_keeps_the_count_of_equals(width: int) -> None:
    view = view_of(QWEN)
    part, lines = view.parts[0], navigation.current_lines(view, started())
    columns = columns_for(width, part, lines)
    assert cell_len(heading(columns)) == width
    for line in lines:
        text = "".join(piece for piece, _ in pieces(line, part, columns))
        assert cell_len(text) == width
        if len(line.row.fqns) > 1 and width >= 56:
            assert f"{len(line.row.fqns)} identical" in text


@pytest.mark.parametrize("width", [40, 78, 200])
def test_a_line_at_any_depth_has_its_name(width: int) -> None:
    """Names were blank from the twentieth level on."""
    view = view_of(QWEN)
    part, lines = view.parts[0], navigation.current_lines(view, started())
    for depth in (0, 3, 20, 60, 400):
        deep = tuple(replace(line, depth=depth) for line in lines)
        columns = columns_for(width, part, deep)
        for line in deep:
            text = "".join(piece for piece, _ in pieces(line, part, columns))
            assert cell_len(text) == width
            assert len(line.row.names) > 1 or line.row.names[0][:5] in text
            assert depth <= 20 or f"{depth} " in text


def test_what_fails_in_a_cured_part_is_marked_cured_and_still_says_where_it_fails() -> None:
    view = view_of(QWEN)
    part, lines = view.parts[0], navigation.current_lines(view, started())
    text = ["".join(piece for piece, _ in pieces(line, part, columns_for(120, part, lines))) for line in lines]
    assert any("✚ model.visual" in line and "fails itself" in line for line in text)
    assert any("28 identical" in line and "✚" in line and "attn fails" in line for line in text)
    assert not any("✗ model" in line or "✗ blocks" in line for line in text)


def test_an_attempt_on_the_small_model_is_told_in_the_words_of_its_part() -> None:
    plain = Probe(part="full", fqn="", shims=("a", "b"))
    tried = running_attempt(replace_struct(plain, part=f"full{SMALL_MODEL_SUFFIX}"), 7, 1.0)
    assert (tried.part, tried.how, tried.cures) == ("full", "with a + b, on a small model", True)
    assert running_attempt(Probe(part="full", fqn="x"), 7, 1.0).how == ""


def test_only_a_plain_attempt_tells_of_a_module_by_itself() -> None:
    folding = RunFold(HERE / QWEN)
    folding.take(read_events(HERE / QWEN / NAME))
    told = {(part.record.name, fqn) for part in folding.view(held=False).parts for fqn in part.failed}
    plain = {
        (event.probe.part, event.probe.fqn)
        for event in read_events(HERE / QWEN / NAME)
        if isinstance(event, ProbeFinished) and not event.outcome.passed and not event.probe.shims
    }
    assert told == {(part, fqn) for part, fqn in plain if not part.endswith(SMALL_MODEL_SUFFIX)}


def test_an_event_about_an_unknown_part_changes_no_picture() -> None:
    folding = RunFold(HERE / "crash")
    folding.take(read_events(HERE / "crash" / NAME))
    before = folding.view(held=False)
    probe = Probe(part="elsewhere", fqn="x")
    folding.take(
        (
            ProbeStarted(probe=probe, pid=1),
            ProbeFinished(probe=probe, outcome=Outcome(probe=probe.id, status=OutcomeStatus.FAILED)),
            ModuleJudged(part="elsewhere", fqns=("x",), status="fails_own"),
            PartFinished(part="elsewhere", verdict="fails", exporter="export", seconds=1.0, asked=1),
        )
    )
    assert [part.record for part in folding.view(held=False).parts] == [part.record for part in before.parts]


def test_the_tree_reads_without_colour() -> None:
    view = view_of("crash")
    part = view.parts[0]
    lines = lines_of(part.rows, Expansion(opened=frozenset(key_of(row) for row in part.rows)))
    text = ["".join(piece for piece, _ in pieces(line, part, columns_for(78, part, lines))) for line in lines]
    assert any("☠" in line for line in text)
    assert any("✓" in line for line in text)


def test_parts_are_gone_round_in_both_directions() -> None:
    view = view_of(QWEN)
    names = [part.record.name for part in view.parts]
    position = navigation.start_position(view, Position())
    seen = []
    for _ in names:
        seen.append(position.part)
        position = navigation.adjacent_part(view, position, step=1)
    assert seen == names
    assert navigation.adjacent_part(view, position, step=-1).part == names[-1]


def test_source_is_shown_only_if_it_is_the_line_that_ran(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("a = 1\nb = 2\nc = 3\n")
    frame = Frame(file=str(file), line=2, function="f", source="b = 2")
    assert Sources().excerpt(frame, around=1).lines == ("a = 1", "b = 2", "c = 3")
    file.write_text("# new\na = 1\nb = 2\n")
    changed = Sources().excerpt(frame)
    assert changed.lines == ("b = 2",)
    assert "changed" in changed.remark
    file.unlink()
    assert Sources().excerpt(frame).lines == ("b = 2",)


def test_source_of_another_machine_is_found_below_a_root() -> None:
    frame = Frame(file="/elsewhere/fixtures/segfault.py", line=18, function="forward", source="ctypes.string_at(0)")
    assert Sources((REPOSITORY,)).find(frame) == REPOSITORY / "fixtures/segfault.py"


def test_a_module_with_two_findings_shows_and_finds_both() -> None:
    """As where two dimensions are violated at two lines."""
    folding = RunFold(HERE / QWEN)
    folding.take(read_events(HERE / QWEN / NAME))
    before = folding.view(held=False)
    first = next(iter(before.findings.values()))
    other = replace_struct(first, id="F99", source="other()", function="other")
    judged = ModuleJudged(part=first.part, fqns=first.modules, status="fails_own", finding="F99")
    folding.take((FindingMade(finding=other), judged))
    view = folding.view(held=False)
    position = navigation.finding_position(view, navigation.start_position(view, Position()), "F99")
    part = next(one for one in view.parts if one.record.name == first.part)
    row = next(path.rows[-1] for path in part.row_paths if path.key == position.cursor)
    assert (row.finding, row.also) == (first.id, ("F99",))
    selection = Selection(view=view, part=part, row=row, finding=first)
    text = story(selection).plain
    assert f"{first.id} · " in text
    assert "F99 · " in text
    assert text.index("F99 · ") > text.index(f"{first.id} · ")

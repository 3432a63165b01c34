"""The real application on recorded events: what every test of the terminal interface starts from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from exportdoctor.report.source_lines import Sources
from exportdoctor.store.journal import NAME, read_events
from exportdoctor_tui.app import DoctorApp
from exportdoctor_tui.screens.run import RunScreen
from exportdoctor_tui.screens.run_list import RunListScreen
from exportdoctor_tui.state.run_follower import RunFold
from exportdoctor_tui.state.run_view import RunView

HERE = Path(__file__).parent / "tui_recordings"
REPOSITORY = Path(__file__).parents[2]
NOW = 1_795_182_000.0
"""The clock of all tests, in seconds since the epoch: shortly after the recordings were made."""


def recorded(name: str, folder: Path, *, share: float = 1.0) -> Path:
    """A run's folder in `folder` with the first `share` of a recording's bytes, cut wherever that falls."""
    run = folder / name
    run.mkdir(parents=True)
    data = (HERE / name / NAME).read_bytes()
    (run / NAME).write_bytes(data[: int(len(data) * share)])
    return run


def interrupted(folder: Path) -> Path:
    """The run as it was when its user interrupted it in the middle, a while before it was resumed."""
    run = folder / "interrupted"
    run.mkdir(parents=True)
    before, mark, after = (HERE / "qwen" / NAME).read_bytes().partition(b'{"event":"run_finished"')
    (run / NAME).write_bytes(before + mark + after.partition(b"\n")[0] + b"\n")
    return run


def runs_of(names: tuple[str, ...], folder: Path) -> Path:
    """A folder of runs that holds these recordings."""
    for name in names:
        shutil.copytree(HERE / name, folder / name)
    return folder


def view_of(name: str) -> RunView:
    """The picture after all events of a recording."""
    folding = RunFold(HERE / name)
    folding.take(read_events(HERE / name / NAME))
    return folding.view(held=False)


def app_on(run: Path | None, **given: Any) -> DoctorApp:
    """The application with pinned clock, and sources found in this repository only."""
    app = DoctorApp(run, clock=lambda: NOW, sources=Sources((REPOSITORY,), own_paths=False), **given)
    app.animation_level = "none"
    return app


def run_screen(app: DoctorApp) -> RunScreen:
    """The screen of a run, which must be the one that is shown."""
    assert isinstance(app.screen, RunScreen)
    return app.screen


async def settled(pilot: Any) -> None:
    """Wait until all that the threads have sent is on the screen."""
    for _ in range(3000):
        await pilot.pause(0.02)
        screen = pilot.app.screen
        if isinstance(screen, RunScreen) and screen.is_settled:
            break
        if isinstance(screen, RunListScreen) and screen.listed:
            break
    await pilot.pause(0.05)


def text_of(app: DoctorApp) -> str:
    """Everything on the screen as text, line by line."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def shows(pilot: Any, *wanted: str, absent: tuple[str, ...] = ()) -> None:
    """Wait until the screen has all of `wanted` and nothing of `absent`, for as long as a user would."""
    for _ in range(1200):
        text = text_of(pilot.app)
        if all(each in text for each in wanted) and not any(each in text for each in absent):
            return
        await pilot.pause(0.05)
    raise AssertionError(f"not on the screen: {wanted}, or still there: {absent}\n{text_of(pilot.app)}")

"""The terminal interface on runs that go on, die, vanish, or were never whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from exportdoctor.store.journal import NAME
from exportdoctor.store.lock import FolderLock
from exportdoctor_tui.screens.run import RunScreen
from tui_recorded import HERE, NOW, REPOSITORY, app_on, recorded, settled, shows

if TYPE_CHECKING:
    from pathlib import Path

QWEN = HERE / "qwen_full_static" / NAME
_HOLD = """
import sys, time
from pathlib import Path
from exportdoctor.store.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


async def test_a_growing_file_is_followed_to_its_end(tmp_path: Path) -> None:
    data = QWEN.read_bytes()
    run = recorded("qwen_full_static", tmp_path, share=0.65)
    lock = FolderLock(run)
    app = app_on(run)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, "running", "attempts", "/s")
        written = (run / NAME).stat().st_size
        for end in (int(len(data) * 0.8), len(data)):
            with open(run / NAME, "ab") as file:
                file.write(data[written:end])
            written = end
            await pilot.pause(0.3)
        await shows(pilot, "finished", "2 findings", "F2")
    lock.release()


async def test_the_attempts_in_flight_are_shown_with_their_processes(tmp_path: Path) -> None:
    run = recorded("qwen_full_static", tmp_path, share=0.55)
    lock = FolderLock(run)
    app = app_on(run)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, "process ", "model.")
    lock.release()


async def test_where_the_user_is_survives_what_arrives(tmp_path: Path) -> None:
    data = QWEN.read_bytes()
    run = recorded("qwen_full_static", tmp_path, share=0.7)
    lock = FolderLock(run)
    app = app_on(run)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await pilot.press("end")
        screen = app.screen
        assert isinstance(screen, RunScreen)
        before = screen.browse.cursor
        with open(run / NAME, "ab") as file:
            file.write(data[int(len(data) * 0.7) :])
        await shows(pilot, "finished")
        assert screen.browse.cursor == before
    lock.release()


async def test_a_run_whose_process_dies_says_so_and_can_be_resumed(tmp_path: Path) -> None:
    run = recorded("qwen_full_static", tmp_path, share=0.5)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(run)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    app = app_on(run)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, "running")
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        await shows(pilot, "cut off")
        await pilot.press("a")
        await shows(pilot, "Resume")


async def test_a_folder_that_vanishes_keeps_what_was_read(tmp_path: Path) -> None:
    run = recorded("crash", tmp_path)
    app = app_on(run)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        shutil.rmtree(run)
        await shows(pilot, "folder is gone", "kernel")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no json at all\n", "was not written by exportdoctor"),
        (b'{"event":"run_started","schema":"exportdoctor.events/9","run":"x"}\n', "exportdoctor.events/9"),
        (b'{"hello":1}\n', "was not written by exportdoctor"),
    ],
)
async def test_a_foreign_or_newer_file_is_told_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / NAME).write_bytes(content)
    app = app_on(tmp_path)
    async with app.run_test(size=(160, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, said)


async def test_a_torn_line_is_no_error(tmp_path: Path) -> None:
    app = app_on(recorded("qwen_full_static", tmp_path, share=0.777))
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, "cut off", "visual", absent=("damaged",))


async def test_an_event_of_a_later_version_is_passed_over(tmp_path: Path) -> None:
    run = recorded("crash", tmp_path)
    lines = (run / NAME).read_bytes().splitlines(keepends=True)
    lines.insert(2, b'{"event":"tea_served","at":1.0,"sugar":2}\n')
    (run / NAME).write_bytes(b"".join(lines))
    app = app_on(run)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, "finished", "kernel", absent=("damaged",))


async def test_names_and_messages_are_text_whatever_is_in_them(tmp_path: Path) -> None:
    run = recorded("crash", tmp_path)
    data = (run / NAME).read_text()
    data = data.replace('"encoder.kernel"', '"encoder.[red]x[/red]\\u202e\\u001b[31m"').replace(
        "Segmentation fault", "[bold]\\u001b]0;oops\\u0007[/] fault"
    )
    (run / NAME).write_text(data)
    app = app_on(run)
    async with app.run_test(size=(160, 40)) as pilot:
        await settled(pilot)
        await pilot.press("n", "n")
        await shows(pilot, "[red]x[/red]", "[bold]", absent=("\x1b", "\u202e", "\x07"))


@pytest.mark.slow
async def test_a_real_scan_is_watched_from_its_first_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    run = tmp_path / "run"
    command = (sys.executable, "-m", "exportdoctor", "scan", "fixtures/parent_own_code_and_child.py:build",
               "--no-cache", "--quiet", "--out", str(run))  # fmt: skip
    app = app_on(run, scan=command)
    async with app.run_test(size=(120, 40)) as pilot:
        for _ in range(1200):
            await pilot.pause(0.1)
            screen = app.screen
            if isinstance(screen, RunScreen) and screen.view.status == "finished":
                break
        await shows(pilot, "finished", "2 findings", "shortest = int(lengths.min())")
        assert app.clock() == NOW

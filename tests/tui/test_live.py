"""The terminal interface on runs that go on, die, vanish, or were never whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest

from exportdoctor.store.journal import NAME
from exportdoctor.store.lock import FolderLock
from exportdoctor_tui.screens.run import RunScreen
from tui_recorded import HERE, NOW, REPOSITORY, app_on, recorded, runs_of, settled, shows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATH = os.pathsep.join(str(REPOSITORY / folder) for folder in ("src", "tui", "tests/support"))
_WITH_OUR_SOURCES = """
import sys
from pathlib import Path
from tui_recorded import app_on
app_on(Path(sys.argv[1])).run()
"""
QWEN = HERE / "qwen" / NAME
_HOLD = """
import sys, time
from pathlib import Path
from exportdoctor.store.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
async def test_a_growing_file_is_followed_to_its_end(tmp_path: Path) -> None:
    data = QWEN.read_bytes()
    run = recorded("qwen", tmp_path, share=0.7)
    lock = FolderLock(run)
    app = app_on(run)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, "running", "2/3 diagnose", "842/2149")
        written = (run / NAME).stat().st_size
        for end in (int(len(data) * 0.8), int(len(data) * 0.95), len(data)):
            with open(run / NAME, "ab") as file:
                file.write(data[written:end])
            written = end
            await pilot.pause(0.3)
        await shows(pilot, "finished", "5 findings", "F2")
    lock.release()


@pytest.mark.slow
async def test_the_attempts_in_flight_are_shown_with_their_processes(tmp_path: Path) -> None:
    run = recorded("qwen", tmp_path, share=0.62)
    lock = FolderLock(run)
    app = app_on(run)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, "process ", "model.")
    lock.release()


@pytest.mark.slow
async def test_where_the_user_is_survives_what_arrives(tmp_path: Path) -> None:
    data = QWEN.read_bytes()
    run = recorded("qwen", tmp_path, share=0.75)
    lock = FolderLock(run)
    app = app_on(run)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await pilot.press("end")
        screen = app.screen
        assert isinstance(screen, RunScreen)
        before = screen.position.cursor
        with open(run / NAME, "ab") as file:
            file.write(data[int(len(data) * 0.75) :])
        await shows(pilot, "finished")
        assert screen.position.cursor == before
    lock.release()


@pytest.mark.slow
async def test_a_run_whose_process_dies_says_so_and_can_be_resumed(tmp_path: Path) -> None:
    run = recorded("qwen", tmp_path, share=0.65)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no json at all\n", "was not written by exportdoctor"),
        (b'{"event":"run_started","schema":"exportdoctor.events/9","run":"x"}\n', "exportdoctor.events/9"),
        (b'{"event":"run_started","schema":"exportdoctor.events/0","run":"x"}\n', "exportdoctor.events/0"),
        (b'{"hello":1}\n', "was not written by exportdoctor"),
    ],
)
async def test_a_foreign_older_or_newer_file_is_told_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / NAME).write_bytes(content)
    app = app_on(tmp_path)
    async with app.run_test(size=(160, 40)) as pilot:
        await settled(pilot)
        await shows(pilot, said)


async def test_a_torn_line_is_no_error(tmp_path: Path) -> None:
    app = app_on(recorded("qwen", tmp_path, share=0.777))
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
async def test_names_and_notes_of_shims_are_text_whatever_is_in_them(tmp_path: Path) -> None:
    run = recorded("qwen", tmp_path)
    data = (run / NAME).read_text().replace("precompute-grid", "[b]pre\\u001b[31m\\u202ex[/b]")
    (run / NAME).write_text(data)
    app = app_on(run)
    async with app.run_test(size=(160, 60)) as pilot:
        await settled(pilot)
        await pilot.press("5")
        await shows(pilot, "1. [b]pre", "→ [b]pre", "gets past this", absent=("\x1b", "\u202e"))


async def test_a_run_that_cannot_be_read_is_listed_with_why(tmp_path: Path) -> None:
    runs_of(("crash",), tmp_path)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / NAME).write_bytes(b"no json at all\n")
    app = app_on(None, root=tmp_path)
    async with app.run_test(size=(160, 30)) as pilot:
        await settled(pilot)
        await shows(pilot, "fixtures/segfault.py:build", "unreadable")


@contextlib.contextmanager
def in_terminal(folder: Path, *command: str, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The interface on a recorded run, in a terminal of 80x24 with 256 colours: its process, and the terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("COLORTERM", "NO_COLOR", "VISUAL")}
    process = subprocess.Popen(
        [sys.executable, *(command or ("-m", "exportdoctor", "tui")), str(recorded("crash", folder))],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        env={**known, "PYTHONPATH": PATH, "TERM": "xterm-256color", "EXPORTDOCTOR_HOME": str(folder), **environment},
    )  # fmt: skip
    os.close(slave)
    try:
        yield process, master
    finally:
        process.kill()
        os.close(master)


def drawn_until(terminal: int, text: bytes) -> bytes:
    """What is drawn up to this text, within a minute of silence."""
    drawn = b""
    while text not in drawn and select.select([terminal], [], [], 60)[0]:
        drawn += os.read(terminal, 65536)
    assert text in drawn
    return drawn


def quits(process: subprocess.Popen[bytes], terminal: int) -> bool:
    os.write(terminal, b"q")
    while process.poll() is None and select.select([terminal], [], [], 60)[0]:
        with contextlib.suppress(OSError):  # a terminal without an open other end cannot be read
            os.read(terminal, 65536)
    return process.wait(60) == 0


@pytest.mark.slow
def test_a_real_terminal_of_80x24_with_256_colours_is_enough(tmp_path: Path) -> None:
    with in_terminal(tmp_path) as (process, terminal):
        drawn = drawn_until(terminal, b"kernel")
        assert b";5;" in drawn
        assert b"38;2;" not in drawn
        assert quits(process, terminal)


@pytest.mark.slow
def test_an_editor_that_is_not_there_is_told_and_the_interface_stays(tmp_path: Path) -> None:
    """Story: the terminal stayed blank, and no key was heard but Ctrl-C."""
    with in_terminal(tmp_path, "-c", _WITH_OUR_SOURCES, EDITOR="no-such-editor") as (process, terminal):
        drawn_until(terminal, b"kernel")
        os.write(terminal, b"e")
        drawn_until(terminal, b"no-such-editor")
        assert quits(process, terminal)


def test_without_textual_the_command_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['textual'] = None; from exportdoctor.cli.main import run; sys.exit(run(['tui']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": PATH, "EXPORTDOCTOR_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "pip install 'exportdoctor[tui]'" in done.stderr


async def choose(pilot: Any, title: str) -> None:
    """Open the list of what can be done, and take the first that begins so."""
    await pilot.press("a")
    await pilot.pause(0.1)
    run = next(screen for screen in pilot.app.screen_stack if isinstance(screen, RunScreen))
    number = next(number for number, command in enumerate(run.commands()) if command.title.startswith(title))
    await pilot.press(*["down"] * number, "enter")
    await pilot.pause(0.1)


async def ended(pilot: Any, title: str) -> None:
    """Wait until what was started is over."""
    for _ in range(2400):
        await pilot.pause(0.1)
        job = pilot.app.job
        if job is not None and job.title.startswith(title) and job.state != "running":
            break
    assert pilot.app.job.state == "done", pilot.app.job.output()
    await pilot.pause(0.6)


@pytest.mark.night
@pytest.mark.timeout(600)
async def test_from_the_culprit_over_its_stack_and_a_shim_to_its_repro(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", PATH)
    run = tmp_path / "run"
    command = (sys.executable, "-m", "exportdoctor", "scan", "fixtures/unregistered_pytree_out.py:build",
               "--no-cache", "--no-cure", "--quiet", "--out", str(run))  # fmt: skip
    app = app_on(run, scan=command)
    async with app.run_test(size=(120, 45)) as pilot:
        await ended(pilot, "This scan")
        await shows(pilot, "finished", "1 finding", "✗ (root)")
        await pilot.press("2")
        await shows(pilot, "_export_to_aten_ir_make_fx", "raise RuntimeError(")
        await pilot.press("5")
        await shows(pilot, "No shims were tried on default")
        await choose(pilot, "Try shims on default")
        await shows(pilot, "register-dataclass-pytree")
        await pilot.press(*"dataclass", "enter")
        await ended(pilot, "Try shims")
        await shows(pilot, "before: fails", "after:  exports")
        await pilot.press("escape")
        await choose(pilot, "Make and verify the repro of F1")
        await ended(pilot, "Make and verify")
        await pilot.press("6")
        await shows(pilot, "needs only torch, verified", "torch.export.export")


@pytest.mark.long
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

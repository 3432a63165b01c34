"""Sweeps through real Dask clusters: every target has one answer, whatever dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from exportdoctor.cli.main import run
from exportdoctor.core.codec import decode, pretty
from exportdoctor.core.errors import ExitCode
from exportdoctor.core.run.atlas import Atlas
from exportdoctor.store.lock import FolderLock
from exportdoctor.sweep.run_sweep import SweepRequest, read_kept_rows
from exportdoctor.sweep.sweep_targets import name_targets
from exportdoctor.sweep.target_task import ANSWER, SweepAnswer, SweepTask, ask_target

HERE = Path(__file__).parents[1] / "support" / "sweep_factories.py"
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))


def _words(out: Path, *names: str) -> list[str]:
    return ["sweep", *(f"{HERE}:{name}" for name in names), "--out", str(out), "--no-cure", "--sizes", "static"]


def _atlas(out: Path) -> Atlas:
    atlas: Atlas = decode((out / "atlas.json").read_bytes(), Atlas)
    return atlas


def _until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def _asked(out: Path) -> int:
    """How often a target was asked, over all targets and sessions."""
    return sum(len(log.read_text().splitlines()) for log in out.glob("runs/*/asked.log"))


@pytest.mark.long
def test_each_target_has_its_verdict_and_none_is_asked_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    words = [*_words(out, "passes", "fails", "segfaults"), "--jobs", "2"]
    assert run(words) == ExitCode.FINDINGS
    atlas = _atlas(out)
    verdicts = {row.name.rpartition("-")[2]: row.cells[0] for row in atlas.rows}
    assert {name: cell.verdict for name, cell in verdicts.items()} == {
        "passes": "passes",
        "fails": "fails",
        "segfaults": "fails",
    }
    assert verdicts["segfaults"].kind == "crash"
    assert (verdicts["fails"].kind, verdicts["fails"].source) == ("data_dependent_guard", "if x.sum() > 0:")
    assert [(share.of, share.tried, share.as_is) for share in atlas.shares] == [(3, 3, 1), (3, 1, 1)]
    assert sorted(len(cause.unlocks) for cause in atlas.causes) == [1, 1]
    assert all((out / cell.run / "report.json").exists() for row in atlas.rows for cell in row.cells)
    assert run([*words, "--against", str(out / "atlas.json")]) == ExitCode.FINDINGS
    assert _asked(out) == 3
    again = _atlas(out)
    assert again.difference is not None
    assert (again.difference.cells, again.difference.same) == ((), 6)
    capsys.readouterr()
    assert run([*_words(out, "passes"), "--jobs", "2"]) == ExitCode.EXPORTS
    assert "the atlas had 2 targets more, whose answers stay in the folder" in capsys.readouterr().err
    assert _asked(out) == 3


@pytest.mark.long
def test_rows_of_an_earlier_atlas_are_kept_and_their_targets_not_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert run([*_words(first, "fails"), "--jobs", "1"]) == ExitCode.FINDINGS
    words = [*_words(second, "passes", "fails"), "--jobs", "1", "--keep", str(first / "atlas.json")]
    assert run(words) == ExitCode.FINDINGS
    assert _asked(second) == 1
    before, after = _atlas(first), _atlas(second)
    kept = next(row for row in after.rows if row.kept)
    assert [row.kept for row in after.rows] == [False, True]
    assert (kept.at, [cell.verdict for cell in kept.cells]) == (before.rows[0].at, ["fails", "not_asked"])
    assert (after.causes, after.complete) == (before.causes, True)
    assert "1 row of earlier sweeps, asked " in (second / "atlas.md").read_text()
    request = SweepRequest(
        targets=tuple(name_targets([before.rows[0].ref])), folder=second, sizes=("static",), to="export",
        words=("--no-cure",), jobs=1, memory_mb=2.0,
        scheduler="", command="", keep=(first / "atlas.json",),
    )  # fmt: skip
    cut = structs.replace(kept.cells[0], verdict="no_verdict")
    for change, held in (
        ({}, True),
        ({"complete": False}, False),  # stopped
        ({"cells": kept.cells[:1]}, False),  # a column is missing
        ({"cells": (cut, kept.cells[1]), "timeout": 1.0, "memory_mb": 2.0}, False),  # more time now
        ({"cells": (cut, kept.cells[1]), "timeout": 3.0, "memory_mb": 2.0}, True),
        ({"few_layers": "depth 2 for 3"}, False),  # all layers now
        ({"digest": ""}, False),  # an older atlas does not say of which file the row is
        ({"digest": "0" * 32}, False),  # another file, or another state of it
    ):
        row = structs.replace(before.rows[0], **change)
        (first / "atlas.json").write_bytes(pretty(structs.replace(before, rows=(row,))))
        assert bool(read_kept_rows(request, timeout=3.0).rows) is held
    (first / "atlas.json").write_bytes(pretty(before))
    for words_now in ((), ("--no-cure", "--exporter", "export-strict"), ("--no-cure", "--allow", "unsound")):
        assert not read_kept_rows(
            structs.replace(request, words=words_now), timeout=3.0
        ).rows  # asks more, or otherwise
    assert read_kept_rows(structs.replace(request, words=("--no-cure", "--timeout", "9")), timeout=3.0).rows
    passing = structs.replace(before.rows[0], cells=tuple(structs.replace(c, verdict="passes") for c in kept.cells))
    (first / "atlas.json").write_bytes(pretty(structs.replace(before, rows=(passing,))))
    assert read_kept_rows(structs.replace(request, words=()), timeout=3.0).rows  # there is nothing to cure
    other = structs.replace(before, environment=before.environment | {"torch": "1.0"})
    (first / "atlas.json").write_bytes(pretty(other))
    assert run([*words[:-1], str(first / "atlas.json")]) == ExitCode.USAGE
    assert "were asked with torch 1.0, here is" in capsys.readouterr().err


@pytest.mark.long
def test_a_killed_node_loses_nothing_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, gate = tmp_path / "sweep", tmp_path / "gate"
    monkeypatch.setenv("SWEEP_GATE", str(gate))
    process = _start([*_words(out, "waits"), "--jobs", "1"])
    try:
        _until(lambda: _asked(out) == 1)
        scan = _scan_of(process.pid)
        scan.parents()[1].kill()  # its parent is the node's warm process
        psutil.wait_procs([scan], timeout=10)
        assert not scan.is_running()
        gate.touch()
        assert process.wait(120) == ExitCode.EXPORTS
    finally:
        process.kill()
    rows = {row.name.rpartition("-")[2]: [cell.verdict for cell in row.cells] for row in _atlas(out).rows}
    assert rows == {"waits": ["passes", "passes"]}  # it exports, and its numbers agree
    assert _asked(out) == 2  # once more for the node that was lost


@pytest.mark.night
def test_one_of_three_nodes_killed_in_the_middle_loses_nothing_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, gate = tmp_path / "sweep", tmp_path / "gate"
    monkeypatch.setenv("SWEEP_GATE", str(gate))
    copies = [tmp_path / f"copy{number}.py" for number in range(8)]
    for copy in copies:
        copy.write_text(HERE.read_text())
    others = [f"{copy}:{name}" for copy, name in zip(copies, ["passes", "fails"] * 4, strict=True)]
    process = _start([*_words(out, "waits"), *others, "--jobs", "3"])
    try:
        _until(lambda: len(list(out.glob("runs/*/answer.json"))) > 2, 240)
        _scan_of(process.pid).parents()[1].kill()  # the target that waits was the first to begin
        gate.touch()
        assert process.wait(240) == ExitCode.FINDINGS
    finally:
        process.kill()
    atlas = _atlas(out)
    assert len({row.name for row in atlas.rows}) == len(atlas.rows) == 9
    assert {cell.verdict for row in atlas.rows for cell in row.cells} == {"passes", "fails", "not_asked"}
    asked = {log.parent.name: len(log.read_text().splitlines()) for log in out.glob("runs/*/asked.log")}
    assert sorted(asked.values()) == [1] * 8 + [2]


@pytest.mark.long
def test_ctrl_c_keeps_what_is_known_and_ends_all_processes(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    process = _start([*_words(out, "passes", "hangs"), "--jobs", "1"])
    try:
        _until(lambda: _asked(out) == 2)
        scan = _scan_of(process.pid)
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: nodes hear of it, too
        assert process.wait(60) == ExitCode.INTERRUPTED
    finally:
        process.kill()
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    assert psutil.wait_procs([*family, scan], timeout=10)[1] == []
    atlas = _atlas(out)
    rows = {row.name.rpartition("-")[2]: [(cell.verdict, cell.why) for cell in row.cells] for row in atlas.rows}
    assert rows["passes"] == [("passes", "")] * 2
    assert rows.get("hangs", [("no_verdict", "interrupted")] * 2) == [("no_verdict", "interrupted")] * 2


def test_a_folder_in_which_another_sweep_writes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Story: two sweeps at once with one --out lost verdicts, and a model that exports stayed without one for good."""
    folder = tmp_path / "sweep"
    folder.mkdir()
    lock = FolderLock(folder)
    try:
        assert run(_words(folder, "passes")) == ExitCode.USAGE
    finally:
        lock.release()
    assert f"another process is using {folder} (process {os.getpid()})" in capsys.readouterr().err
    assert not (folder / "atlas.json").exists()


def test_a_target_whose_node_is_lost_twice_is_told_and_not_asked_again(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "asked.log").write_text("this\nthis\n")
    task = SweepTask(
        name="one", ref="none", folder=str(folder), sizes=("static",), words=(), timeout=1, memory_mb=1, key="k",
        session="this",
    )  # fmt: skip
    assert [one.status for one in ask_target(task).runs] == ["lost"]
    answer: SweepAnswer = decode((folder / ANSWER).read_bytes(), SweepAnswer)
    assert not answer.is_final


@pytest.mark.long
@pytest.mark.parametrize(("few", "asked"), [("passes", ["passes"]), ("refuses", ["refuses", "passes"])])
def test_a_model_that_does_not_run_with_few_layers_is_asked_whole(few: str, asked: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    task = SweepTask(
        name="one", ref=f"{HERE}:{few}", whole=f"{HERE}:passes", folder=str(folder), sizes=("static", "dynamic"),
        words=("--no-cure",), timeout=60, memory_mb=4000, key="k", session="this",
    )  # fmt: skip
    answer = ask_target(task)
    assert answer.ref == f"{HERE}:{asked[-1]}"
    assert {one.status for one in answer.runs} == {"answered"}
    assert ask_target(structs.replace(task, session="next")).runs == answer.runs  # kept


def test_few_layers_without_model_types_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", f"{HERE}:passes", "--few-layers"]) == ExitCode.USAGE
    assert "--few-layers is about model types" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x", "127.0.0.1:notaport"])
def test_an_unreachable_scheduler_is_one_line(address: str, tmp_path: Path) -> None:
    process = _start([*_words(tmp_path / "sweep", "passes"), "--scheduler", address])
    assert process.wait(60) == ExitCode.USAGE
    assert process.stderr is not None
    lines = process.stderr.read().decode().splitlines()
    assert len(lines) == 1
    assert address in lines[0]


@pytest.fixture
def other_cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a scheduler whose worker says that it has another torch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lie = tmp_path / "lie.py"
    lie.write_text(
        "from exportdoctor.core import versions\n"
        "told = versions.installed_versions\n"
        "versions.installed_versions = lambda names, told=told: told(names) | {'torch': '1.0'}\n"
    )
    address = f"tcp://127.0.0.1:{port}"
    starts = (
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", str(port), "--no-dashboard"],
        [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard",
         "--preload", str(lie), "--nthreads", "1"],
    )  # fmt: skip
    silence = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    processes = [subprocess.Popen(argv, **silence) for argv in starts]  # type: ignore[call-overload]
    try:
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_workers_with_other_versions_are_refused(other_cluster: str, tmp_path: Path) -> None:
    process = _start([*_words(tmp_path / "sweep", "passes"), "--scheduler", other_cluster])
    assert process.wait(60) == ExitCode.USAGE
    assert process.stderr is not None
    line = process.stderr.read().decode()
    assert "torch 1.0" in line
    assert line.count("\n") == 1


def _start(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "exportdoctor", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _is_warm(process: psutil.Process) -> bool:
    return "exportdoctor.sweep.warm_process" in process.cmdline()


def _scan_of(pid: int) -> psutil.Process:
    """The scan that a node of the sweep in process `pid` runs now; of several the oldest."""
    found: list[psutil.Process] = []

    def look() -> bool:
        for child in psutil.Process(pid).children(recursive=True):
            try:
                if [_is_warm(one) for one in (child, *child.parents()[:2])] == [True, True, False]:
                    found.append(child)
            except psutil.Error:
                continue
        return bool(found)

    _until(look)
    return min(found, key=psutil.Process.create_time)

"""A lane is whole or not there; what keeps it from being made is told in the installer's words."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest

from lane_wheels import offline_variables, write_wheel


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    """The variables with which pip finds the two wheels and nothing else, and uv is not there."""
    for number in ("1.0.1", "1.0.2"):
        write_wheel(tmp_path / "wheels", number)
    return offline_variables(tmp_path)


def start(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    """`exportdoctor lanes` as a process."""
    command = [sys.executable, "-m", "exportdoctor", "lanes", *words]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # ignored where the tests run in the background
    )


def run(environment: dict[str, str], *words: str) -> tuple[int, list[dict[str, Any]]]:
    """Its exit code and the lanes that it prints."""
    process = start(environment, *words, "--json")
    out, _ = process.communicate()
    return process.returncode, json.loads(out)


@pytest.mark.long
@pytest.mark.slow
def test_a_lane_holds_what_differs_and_is_made_once(offline: dict[str, str], tmp_path: Path) -> None:
    code, [made] = run(offline, "make", "--with", "oddity=1.0.1")
    assert (code, made["state"], made["lane"]["pins"]) == (0, "ready", ["oddity==1.0.1"])
    assert made["lane"]["size"] > 0
    [folder] = (tmp_path / "home" / "cache" / "lanes").glob("oddity1.0.1-*/site-packages")
    assert (folder / "oddity.py").read_text() == "__version__ = '1.0.1'\n"
    assert run(offline, "make", "--with", "oddity=1.0.1") == (0, [made])
    assert run(offline, "prune") == (0, [])
    shutil.rmtree(folder)
    assert [lane["state"] for lane in run(offline, "list")[1]] == ["damaged"]
    code, [again] = run(offline, "make", "--with", "oddity=1.0.1")
    assert (code, again["state"], (folder / "oddity.py").is_file()) == (0, "ready", True)
    next(folder.glob("oddity-*.dist-info")).rename(folder / "oddity-1.0.1.lost")
    assert [lane["state"] for lane in run(offline, "prune")[1]] == ["damaged"]
    assert run(offline, "make", "--with", "oddity=1.0.1")[0] == 0
    assert [lane["state"] for lane in run(offline, "prune", "--all")[1]] == ["ready"]
    assert run(offline, "list") == (0, [])
    assert not folder.exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_version_that_does_not_exist_is_a_state_with_near_versions(offline: dict[str, str]) -> None:
    code, [lane] = run(offline, "make", "--with", "oddity=1.0.3")
    assert (code, lane["state"]) == (1, "failed")
    assert lane["lane"]["reason"].startswith("there is no wheel of oddity 1.0.3 for this Python. The nearest is 1.0.2")
    code, [lane] = run(offline, "make", "--with", "nobody-has-this=1")
    assert (code, lane["lane"]["reason"]) == (
        1,
        "no index that can be reached has a wheel of nobody-has-this for this Python",
    )
    assert len(run(offline, "prune")[1]) == 2


@pytest.mark.long
@pytest.mark.slow
def test_pips_conflict_names_what_excludes_what(offline: dict[str, str], tmp_path: Path) -> None:
    """A torch is an environment of its own. Constraints of pip's own settings hold there, too."""
    for name in ("transformers", "onnx", "onnxscript", "onnxruntime"):
        write_wheel(tmp_path / "wheels", version(name), name=name)
    write_wheel(tmp_path / "wheels", "1.0", name="torch")
    (tmp_path / "limits.txt").write_text("torch<0.5\n")
    code, [lane] = run({**offline, "PIP_CONSTRAINT": str(tmp_path / "limits.txt")}, "make", "--torch", "1.0")
    assert (code, lane["state"]) == (1, "failed")
    assert lane["lane"]["reason"] == (
        "these requirements exclude each other: "
        "The user requested torch==1.0; The user requested (constraint) torch<0.5"
    )


@pytest.mark.slow
def test_uvs_refusal_of_a_version_names_the_near_ones_too(offline: dict[str, str], tmp_path: Path) -> None:
    """As uv 0.13.9 says it."""
    uv = tmp_path / "uv"
    said = "error: No solution found when resolving dependencies\n  cause: Because there is no version of oddity==1.0.3"
    uv.write_text(f'#!/bin/sh\necho "{said} and you require oddity==1.0.3" >&2; exit 1\n')
    uv.chmod(0o755)
    code, [lane] = run({**offline, "PATH": f"{tmp_path}:{offline['PATH']}"}, "make", "--with", "oddity=1.0.3")
    assert (code, lane["state"]) == (1, "failed")
    assert lane["lane"]["reason"] == "there is no wheel of oddity 1.0.3 for this Python. The nearest is 1.0.2"


@pytest.mark.long
@pytest.mark.slow
def test_a_full_disk_is_told_and_tried_again(offline: dict[str, str], tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    error = "OSError: [Errno 28] No space left on device: '/x'"
    uv.write_text(f'#!/bin/sh\necho "ERROR: Exception:\nTraceback (most recent call last):\n{error}" >&2; exit 2\n')
    uv.chmod(0o755)
    code, [lane] = run({**offline, "PATH": f"{tmp_path}:{offline['PATH']}"}, "make", "--with", "oddity=1.0.1")
    assert (code, lane["lane"]["reason"]) == (1, "the disk is full: No space left on device")
    assert run(offline, "make", "--with", "oddity=1.0.1")[0] == 0


@pytest.mark.long
@pytest.mark.slow
def test_two_commands_make_one_lane(offline: dict[str, str]) -> None:
    both = [start(offline, "make", "--with", "oddity=1.0.2", "--json") for _ in range(2)]
    said = [json.loads(process.communicate()[0]) for process in both]
    assert said[0] == said[1]
    assert [lane["state"] for lane in said[0]] == ["ready"]


def installers(pid: int) -> list[psutil.Process]:
    """The process, as long as it runs: one that is interrupted while it starts dies a moment after its parent."""
    try:
        process = psutil.Process(pid)
        return [process] if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.NoSuchProcess:
        return []


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupted_install_leaves_nothing(offline: dict[str, str], tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text(
        '#!/bin/sh\ncase "$*" in *--dry-run*) echo " + oddity==1.0.1";; *) echo $$ > "$0.pid"; exec sleep 60;; esac\n'
    )
    uv.chmod(0o755)
    process = start({**offline, "PATH": f"{tmp_path}:{offline['PATH']}"}, "make", "--with", "oddity=1.0.1")
    told = tmp_path / "uv.pid"
    while not (told.exists() and told.read_text().strip()):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    psutil.wait_procs(installers(int(told.read_text())), timeout=30)
    assert installers(int(told.read_text())) == []
    assert [file.suffix for file in (tmp_path / "home" / "cache" / "lanes").iterdir()] == [".lock"]
    assert run(offline, "make", "--with", "oddity=1.0.1")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--with", "odd/ity=1"), ("--with", "oddity"), ("--transformers", "--no-deps")])
def test_a_wrong_request_is_refused_in_one_line(offline: dict[str, str], words: tuple[str, ...]) -> None:
    process = start(offline, "make", *words)
    _, said = process.communicate()
    assert process.returncode == 2
    assert said.count("\n") == 1

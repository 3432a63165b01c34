"""No process that the code of a target starts outlives the scan, in whatever session it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from exportdoctor.core.errors import TargetError
from exportdoctor.process.descendants import adopt_orphans
from exportdoctor.process.supervise import Limits, run_within
from exportdoctor.worker.child import fork
from scanning import scan_file

TARGET = """
import os, subprocess, sys, time
import torch

def note(pid):
    with open({file!r}, "a") as out:
        out.write(f"{{pid}}\\n")

def session():
    note(subprocess.Popen(["sleep", "100"], start_new_session=True).pid)

def without_variables():
    note(subprocess.Popen(["sleep", "100"], start_new_session=True, env={{}}).pid)

def daemon():
    if os.fork():
        return os.wait()
    os.setsid()
    if not os.fork():
        note(os.getpid())
        os.closerange(0, 100)
        time.sleep(100)
    os._exit(0)

class M(torch.nn.Module):
    def forward(self, x):
        {forward}
        return x + 1

def build():
    {factory}
    return M(), (torch.ones(2),)
"""


def alive(file: Path) -> list[int]:
    """The noted processes that run still, a moment later."""
    found = [psutil.Process(pid) for pid in map(int, file.read_text().split()) if psutil.pid_exists(pid)]
    _, left = psutil.wait_procs(found, timeout=3)
    left = [one for one in left if one.status() != psutil.STATUS_ZOMBIE]
    for one in left:
        one.kill()
    return [one.pid for one in left]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("how", ["session", "without_variables", "daemon"])
def test_nothing_that_a_target_starts_outlives_its_scan(how: str, tmp_path: Path) -> None:
    noted, file = tmp_path / "pids", tmp_path / "target.py"
    file.write_text(TARGET.format(file=str(noted), factory=f"{how}()", forward=f"{how}()"))
    scan_file(file)
    assert len(noted.read_text().split()) >= 3  # building, capturing, an attempt
    assert not alive(noted)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["session", "daemon"])
def test_nothing_outlives_a_worker_that_ends_by_itself(how: str, tmp_path: Path) -> None:
    noted, file = tmp_path / "pids", tmp_path / "target.py"
    file.write_text(TARGET.format(file=str(noted), factory=f"{how}(); os._exit(3)", forward=""))
    with pytest.raises(TargetError, match="exit code 3"):
        scan_file(file)
    assert noted.read_text()
    assert not alive(noted)


@pytest.mark.slow
def test_nothing_outlives_a_script(tmp_path: Path) -> None:
    noted, script = tmp_path / "pids", tmp_path / "script.py"
    code = "import subprocess; one = subprocess.Popen(['sleep', '100'], start_new_session=True)\n"
    script.write_text(f"{code}print(one.pid, file=open({str(noted)!r}, 'a'))")
    with open(os.devnull, "wb") as errors:
        run_within([sys.executable, str(script)], Limits(wall=30, idle=30), folder=tmp_path, errors=errors)
    assert noted.read_text()
    assert not alive(noted)


def test_a_daemon_of_one_attempt_ends_with_that_attempt(tmp_path: Path) -> None:
    """And not only with the whole scan: it would take time and memory from the others."""
    noted = tmp_path / "pids"

    def work(_: int) -> bytes:
        one = subprocess.Popen(["sleep", "100"], start_new_session=True)
        noted.write_text(str(one.pid))
        return b""

    child = os.fork()
    if child == 0:
        adopt_orphans()
        fork(work).wait()
        os._exit(bool(alive(noted)))
    assert os.waitpid(child, 0)[1] == 0

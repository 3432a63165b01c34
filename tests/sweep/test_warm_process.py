"""Scans in forks of one warm process: each its own, whatever the one before it did."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from exportdoctor.sweep.warm_process import WarmProcess

HERE = Path(__file__).parents[1] / "support" / "sweep_factories.py"
pytestmark = pytest.mark.slow


@pytest.mark.night
def test_one_process_serves_many_scans_and_is_replaced_when_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    warm = WarmProcess()
    try:
        codes, parents = [], []
        for number, name in enumerate(("passes", "fails", "none")):
            words = ("scan", f"{HERE}:{name}", "--no-cure", "--quiet", "--out", str(tmp_path / str(number)))
            scan = warm.start(words, tmp_path / f"{number}.stderr", os.environ)
            parents.append(_parent(scan.pid))
            codes.append(scan.wait(120))
        assert codes == [0, 1, 2]
        assert "defines no" in (tmp_path / "2.stderr").read_text()
        assert len(set(parents)) == 1
        scan = warm.start(("scan", f"{HERE}:hangs", "--quiet"), tmp_path / "3.stderr", os.environ)
        os.kill(parents[0], signal.SIGKILL)
        assert scan.wait(20) == -signal.SIGKILL
        end = time.monotonic() + 20
        while Path(f"/proc/{scan.pid}").exists() and _state(scan.pid) != "Z":
            assert time.monotonic() < end, "a scan outlived the process that it was forked from"
            time.sleep(0.05)
        again = warm.start(("--help",), tmp_path / "4.stderr", os.environ)
        assert again.wait(120) == 0
    finally:
        warm.close()


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _state(pid: int) -> str:
    try:
        return _stat(pid)[0]
    except OSError:
        return "Z"


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])

"""A supervised process ends at its limits, with all that it has started, and is left alone within them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from exportdoctor.core.limits import LOG_MB
from exportdoctor.core.records.outcome import OutcomeStatus
from exportdoctor.process.supervise import TICK, KillReason, Limits, Supervisor, supervise

SLEEP = "import time; time.sleep(60)"
POLL = "import time\nwhile True: time.sleep(0.005)"
SPIN = "while True: pass"
SPIN_FOR_A_WHILE = "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
ALLOCATE = "block = bytearray(300 * 2**20)\nimport time; time.sleep(60)"


def in_a_child(code: str) -> str:
    return f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"


@contextmanager
def process_of(code: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", code], process_group=0)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def reason_for(code: str, limits: Limits) -> KillReason | None:
    with process_of(code) as process:
        return supervise(process, limits)


@pytest.mark.slow
@pytest.mark.parametrize("code", [SLEEP, POLL], ids=["sleeping", "polling"])
def test_what_waits_is_killed_when_it_was_idle_for_long_enough(code: str) -> None:
    began = time.monotonic()
    reason = reason_for(code, Limits(wall=60, idle=1))
    assert reason is not None
    assert (reason.status, reason.signal) == (OutcomeStatus.TIMED_OUT, "hang")
    assert time.monotonic() - began < 20


@pytest.mark.long
@pytest.mark.parametrize("limits", [Limits(wall=1, idle=1), Limits(wall=60, idle=1, cpu=0.5)], ids=["wall", "cpu"])
def test_what_computes_is_killed_at_its_time_limit_and_is_no_hang(limits: Limits) -> None:
    reason = reason_for(SPIN, limits)
    assert reason is not None
    assert (reason.status, reason.signal) == (OutcomeStatus.TIMED_OUT, "time-out")


@pytest.mark.slow
@pytest.mark.parametrize("code", [ALLOCATE, in_a_child(ALLOCATE)], ids=["itself", "child"])
def test_the_memory_of_children_counts(code: str) -> None:
    reason = reason_for(code, Limits(wall=60, idle=60, memory_mb=200))
    assert reason is not None
    assert reason.status == OutcomeStatus.OUT_OF_MEMORY
    assert reason.limit_mb == 200 < reason.memory_mb


@pytest.mark.slow
def test_memory_counts_on_top_of_the_baseline() -> None:
    with process_of(ALLOCATE) as process:
        supervisor = Supervisor(process.pid, Limits(wall=60, idle=60, memory_mb=200), baseline_mb=300)
        for _ in range(10):
            time.sleep(TICK)
            supervisor.look()
        assert supervisor.kill_reason is None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "code", ["pass", SPIN_FOR_A_WHILE, in_a_child(SPIN_FOR_A_WHILE)], ids=["ends", "works", "child"]
)
def test_what_works_within_its_limits_is_left_alone(code: str) -> None:
    assert reason_for(code, Limits(wall=60, idle=1.5, memory_mb=1000)) is None


@pytest.mark.slow
def test_what_a_killed_process_has_started_is_killed_with_it() -> None:
    with process_of(in_a_child(SLEEP)) as process:
        root = psutil.Process(process.pid)
        children: list[psutil.Process] = []
        while not children:
            time.sleep(0.01)
            children = root.children(recursive=True)
        assert supervise(process, Limits(wall=60, idle=1)) is not None
    _, alive = psutil.wait_procs(children, timeout=10)
    assert all(child.status() == psutil.STATUS_ZOMBIE for child in alive)


STACKS = "import faulthandler, signal\nfaulthandler.register(signal.SIGUSR1, file=open(FILE, 'w'))\n"
STUCK = "def stuck():\n    import time; time.sleep(60)\nstuck()"


@pytest.mark.slow
def test_a_stack_is_written_before_the_kill(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with process_of(STACKS.replace("FILE", repr(str(log))) + STUCK) as process:
        assert supervise(process, Limits(wall=60, idle=1)) is not None
    assert "in stuck" in log.read_text()


def test_what_a_process_prints_without_end_is_bounded_and_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import os\nfor number in range(10**9): os.write(1, b'%060d\\n' % number * 5000)"
    with open(log, "ab") as out:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=out, process_group=0)
    supervisor, deadline = Supervisor(process.pid, Limits(wall=60, idle=60), log=log), time.monotonic() + 60
    while not supervisor.has_cut_log:
        assert time.monotonic() < deadline
        supervisor.look()
        time.sleep(TICK / 2)
    process.kill()
    process.wait()
    supervisor.cut_log()
    text = log.read_text()
    assert supervisor.has_cut_log
    assert len(text) <= (LOG_MB + 1) * 2**20
    assert "MiB of output are left out here]" in text
    assert text.startswith("0" * 60)

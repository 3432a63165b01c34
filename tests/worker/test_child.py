"""A forked child gives its parent what it wrote, or how it died, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from exportdoctor.core.codec import encode
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.process.supervise import Limits
from exportdoctor.worker.child import fork

LIMITS = Limits(wall=60, idle=1)
LONG = b"x" * (1 << 20)


def sleep(_: int) -> bytes:
    time.sleep(60)
    return b""


def crash(pipe: int) -> bytes:
    os.write(pipe, b"before")
    os.abort()


def test_all_that_a_child_writes_arrives() -> None:
    def write(pipe: int) -> bytes:
        os.write(pipe, b"first ")
        return LONG

    end, killed = fork(write).wait_within(LIMITS)
    assert (end.data, end.code, killed) == (b"first " + LONG, 0, None)


def test_the_outcome_of_a_child_is_its_own() -> None:
    written = Outcome(probe="p", status=OutcomeStatus.FAILED, seconds=1.5)
    end, _ = fork(lambda _: encode(written)).wait_within(LIMITS)
    outcome = end.outcome("p")
    assert (outcome.status, outcome.seconds) == (OutcomeStatus.FAILED, 1.5)
    assert outcome.peak_rss_mb > 0


def test_a_child_whose_own_work_raises_leaves_the_stack_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    end = fork(lambda _: [][0], log=str(log)).wait()
    assert end.code == 70
    assert log.read_text().endswith("IndexError: list index out of range\n")


def test_a_child_that_dies_leaves_what_it_wrote_and_its_signal() -> None:
    end = fork(crash).wait()
    outcome = end.outcome("p")
    assert end.data == b"before"
    assert (outcome.status, outcome.signal) == (OutcomeStatus.CRASHED, "SIGABRT")


@pytest.mark.slow
def test_a_child_that_hangs_is_killed_for_it_and_leaves_its_stack(tmp_path: Path) -> None:
    log = tmp_path / "log"
    end, killed = fork(sleep, log=str(log)).wait_within(LIMITS)
    assert killed == OutcomeStatus.TIMED_OUT
    assert end.outcome("p", killed=killed).status == OutcomeStatus.TIMED_OUT
    assert "in sleep" in log.read_text()


def test_what_a_child_has_started_ends_with_it() -> None:
    def start(_: int) -> bytes:
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        return str(pid).encode()

    grandchild = int(fork(start).wait().data)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(grandchild) and psutil.Process(grandchild).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_child_that_raises_has_no_whole_outcome() -> None:
    def fail(_: int) -> bytes:
        raise ValueError

    assert fork(fail).wait().outcome("p").signal == "exit code 70"


def test_a_child_that_runs_has_not_ended() -> None:
    child = fork(sleep)
    assert child.poll() is None
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait().outcome("p").signal == "SIGKILL"


def test_the_end_of_a_child_kills_no_other_process_that_was_started_meanwhile() -> None:
    """Other children are what a target has left behind only where orphans are adopted, as workers do."""
    first = fork(sleep)
    with subprocess.Popen(["sleep", "60"]) as other:
        assert fork(lambda _: b"").wait().code == 0
        assert other.poll() is None
        other.kill()
    first.end()

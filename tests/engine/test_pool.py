"""The pool, with workers that need no torch: every probe gets an outcome, whatever happens to its worker."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from exportdoctor.core.errors import TargetError, UsageError, WorkerLost
from exportdoctor.core.protocol.scan import Capture, Open, Prepare
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run.events import AnyEvent, PartFinished
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.pool.attempt_limits import AttemptLimits
from exportdoctor.engine.pool.worker_pool import Pool
from exportdoctor.engine.scan import ScanRequest, scan
from exportdoctor.process.client import LineClient
from scripted_client import start_script


@dataclass
class Scripted:
    """Starts workers of tests/support/scripted_worker.py."""

    logs: Path

    def start(self, *, log: Path | None) -> LineClient:
        return start_script("scripted_worker.py", SCRIPTED_WORKER_LOGS=str(self.logs))


@dataclass
class StartedOnce(Scripted):
    """Starts one worker, and then finds the limit of processes reached."""

    has_started: bool = False

    def start(self, *, log: Path | None) -> LineClient:
        if self.has_started:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.has_started = True
        return super().start(log=log)


def probe(fqn: str, timeout: float = 60.0) -> Probe:
    return Probe(part="default", fqn=fqn, timeout=timeout)


@contextmanager
def pool_in(logs: Path, *, shim_files: tuple[str, ...] = (), by_cpu_time: bool = False) -> Iterator[Pool]:
    opening = Open(target=None, shim_files=shim_files)
    with closing(Pool(Scripted(logs), opening, jobs=1, log=None, by_cpu_time=by_cpu_time)) as pool:
        yield pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with pool_in(tmp_path) as pool:
        pool.open()
        pool.capture_part(Capture(part="default"))
        yield pool


def attempts(logs: Path) -> list[str]:
    return (logs / "attempts").read_text().splitlines()


def test_a_probe_gets_the_outcome_of_its_attempt(pool: Pool) -> None:
    outcomes = [pool.submit(probe(name)) for name in ("first", "second", "crashes")]
    assert [one.result(timeout=60).status for one in outcomes] == [
        OutcomeStatus.PASSED, OutcomeStatus.PASSED, OutcomeStatus.CRASHED,
    ]  # fmt: skip
    assert outcomes[2].result().signal == "SIGABRT"


def test_a_probe_whose_worker_is_killed_is_asked_again_in_another(pool: Pool, tmp_path: Path) -> None:
    outcomes = [pool.submit(probe(name)) for name in ("kills its first worker", "second")]
    assert all(outcome.result(timeout=60).passed for outcome in outcomes)
    assert attempts(tmp_path) == ["kills its first worker", "kills its first worker", "second"]


@pytest.mark.slow
def test_what_waits_fails_where_no_other_worker_can_be_started(tmp_path: Path) -> None:
    launcher = StartedOnce(tmp_path)
    with closing(Pool(launcher, Open(target=None), jobs=1, log=None, by_cpu_time=False)) as pool:
        pool.open()
        pool.capture_part(Capture(part="default"))
        outcomes = [pool.submit(probe(name)) for name in ("kills its first worker", "second")]
        for one in outcomes:
            with pytest.raises(WorkerLost, match="A worker cannot be started"):
                one.result(timeout=60)


def test_a_probe_that_kills_every_worker_crashes_and_the_others_go_on(pool: Pool, tmp_path: Path) -> None:
    outcomes = [pool.submit(probe(name)) for name in ("kills its worker", "second")]
    crashed = outcomes[0].result(timeout=60)
    assert (crashed.status, crashed.signal) == (OutcomeStatus.CRASHED, "SIGKILL")
    assert outcomes[1].result(timeout=60).passed
    assert attempts(tmp_path).count("kills its worker") == 3


@pytest.mark.slow
@pytest.mark.parametrize("by_cpu_time", [True, False])
def test_what_waits_is_killed_at_its_time_out_and_called_a_hang(tmp_path: Path, *, by_cpu_time: bool) -> None:
    with pool_in(tmp_path, by_cpu_time=by_cpu_time) as pool:
        pool.open()
        pool.capture_part(Capture(part="default"))
        outcome = pool.submit(probe("hangs", timeout=1.0)).result(timeout=60)
    assert (outcome.status, outcome.signal) == (OutcomeStatus.TIMED_OUT, "hang")
    assert outcome.failure is not None
    assert outcome.failure.exceptions[0].message.startswith("Killed after ")


def test_garbage_in_place_of_an_outcome_is_a_crash(pool: Pool) -> None:
    assert pool.submit(probe("raises garbage")).result(timeout=60).status == OutcomeStatus.CRASHED


def test_a_refusal_is_raised_as_the_error_that_it_stands_for(tmp_path: Path) -> None:
    with pool_in(tmp_path, shim_files=("refuse",)) as pool, pytest.raises(UsageError, match="no such file") as raised:
        pool.open()
    assert raised.value.hint == "look"


def test_a_part_whose_forward_fails_or_kills_its_process_is_the_targets_error(pool: Pool) -> None:
    with pytest.raises(TargetError, match="the forward fails") as raised:
        pool.capture_part(Capture(part="fails"))
    assert raised.value.stack == ("line",)
    with pytest.raises(TargetError, match="kills its worker ends the process"):
        pool.capture_part(Capture(part="kills its worker"))
    assert pool.submit(probe("first")).result(timeout=60).passed


@pytest.mark.slow
def test_an_early_attempt_is_reported_once_it_is_adopted_and_keeps_to_its_new_limits(pool: Pool) -> None:
    early = pool.attempt_early(Prepare(part="default"), probe("", timeout=600.0))
    assert early is not None
    _, running = early
    future = pool.adopt(running, probe("hangs", timeout=1.0))
    assert future is not None
    assert (running.early, running.root) == (False, True)  # it still goes before all others
    assert future.result(timeout=60).signal == "hang"
    assert pool.started.get(timeout=1)[0].timeout == 1.0
    assert pool.started.empty()


def test_an_abandoned_attempt_leaves_room_for_others(pool: Pool) -> None:
    early = pool.attempt_early(Prepare(part="default"), probe("", timeout=600.0))
    assert early is not None
    pool.abandon(early[1])
    assert pool.submit(probe("first")).result(timeout=60).passed
    assert pool.started.get(timeout=1)[0].fqn == "first"


def test_a_spare_attempt_runs_where_nothing_else_does_and_makes_way(pool: Pool) -> None:
    pool.capture_part(Capture(part="default"))
    spare = pool.attempt_spare(probe("hangs", timeout=600.0))
    assert spare is not None
    assert pool.attempt_spare(probe("second")) is None  # there is one job
    assert pool.submit(probe("first")).result(timeout=60).passed
    assert spare.is_abandoned
    assert pool.adopt(spare, probe("hangs")) is None
    assert pool.started.get(timeout=1)[0].fqn == "first"
    assert pool.started.empty()


def test_a_spare_attempt_counts_as_any_other_once_it_is_adopted(pool: Pool) -> None:
    pool.capture_part(Capture(part="default"))
    spare = pool.attempt_spare(probe("first"))
    assert spare is not None
    future = pool.adopt(spare, probe("first"))
    assert future is not None
    assert future.result(timeout=60).passed
    pool.submit(probe("second")).result(timeout=60)
    assert not spare.is_abandoned


def test_a_part_whose_forward_fails_leaves_the_others_their_verdicts(tmp_path: Path) -> None:
    request = ScanRequest(target=TargetRef(ref="fails first"), options=ScanOptions(use_cache=False, cure=False))
    seen: list[AnyEvent] = []
    with pytest.raises(TargetError, match="the forward fails"):
        seen.extend(scan(request, Scripted(tmp_path)))  # what came before the error stays
    assert [event.part for event in seen if isinstance(event, PartFinished)] == ["default"]


@pytest.mark.parametrize(("forward", "seconds"), [(0.0, 60), (0.1, 60), (1.0, 300), (4.0, 600), (20.0, 1200)])
def test_before_an_attempt_has_finished_its_limit_is_in_forwards(forward: float, seconds: float) -> None:
    """Qwen3-Next's language model was killed after 60 forwards, with dynamic sizes; it exports after a few more."""
    limits = AttemptLimits(fixed=None, memory_mb=1000, forward_seconds=forward)
    assert limits.timeout == seconds
    limits.learn(Outcome(probe="", status=OutcomeStatus.PASSED, seconds=8.0), whole=True)
    assert limits.timeout == 80


def test_an_early_failure_or_a_submodule_does_not_cut_the_limit_of_a_whole_part() -> None:
    """A part that fails in its first line fails at once; with the cure its export takes what such a part takes."""
    limits = AttemptLimits(fixed=None, memory_mb=1000, forward_seconds=1.0)
    limits.learn(Outcome(probe="", status=OutcomeStatus.FAILED, seconds=0.5), whole=True)
    limits.learn(Outcome(probe="", status=OutcomeStatus.PASSED, seconds=2.0), whole=False)
    assert limits.timeout == 300
    limits.learn(Outcome(probe="", status=OutcomeStatus.PASSED, seconds=70.0), whole=True)
    assert limits.timeout == 700
    limits.learn(Outcome(probe="", status=OutcomeStatus.FAILED, seconds=1.0), whole=True)
    assert limits.timeout == 700

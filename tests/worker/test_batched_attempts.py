"""Plain layers share a child: each gets its own outcome, and what does not pass is left to another child."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator

import pytest

from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.worker.batched_attempts import BatchChild, start_batch


def probe_of(fqn: str) -> Probe:
    return Probe(part="p", fqn=fqn)


def attempt(probe: Probe) -> Outcome | None:
    """Passes, with the number of the process in its note, but for the names of other ends."""
    if probe.fqn == "waits":
        time.sleep(60)
    status = OutcomeStatus.FAILED if probe.fqn == "fails" else OutcomeStatus.PASSED
    return None if probe.fqn == "in doubt" else Outcome(probe=probe.id, status=status, note=str(os.getpid()))


@pytest.fixture
def batches() -> Iterator[list[BatchChild]]:
    first = start_batch(attempt, close=())
    both = [first, start_batch(attempt, close=first.descriptors)]
    yield both
    for batch in both:
        batch.close()


def test_two_children_attempt_side_by_side_and_each_again_and_again(batches: list[BatchChild]) -> None:
    for fqn in ("a", "b", "c"):
        for batch in batches:
            batch.start(probe_of(f"{fqn}.{batch.pid}"))
        for batch in reversed(batches):
            probe, outcome = batch.take()
            assert probe.fqn == f"{fqn}.{batch.pid}"
            assert outcome is not None
            assert (outcome.probe, outcome.note) == (probe.id, str(batch.pid))
            assert batch.probe is None


@pytest.mark.parametrize("fqn", ["fails", "in doubt"])
def test_what_does_not_pass_has_no_outcome_and_ends_its_child_alone(batches: list[BatchChild], fqn: str) -> None:
    ends, other = batches
    ends.start(probe_of(fqn))
    other.start(probe_of("passes"))
    assert ends.take() == (probe_of(fqn), None)
    assert other.take()[1] is not None
    ends.start(probe_of("later"))
    assert ends.take() == (probe_of("later"), None)


def test_a_child_that_is_killed_can_be_read_at_once(batches: list[BatchChild]) -> None:
    killed = batches[0]
    killed.start(probe_of("waits"))
    os.kill(killed.pid, signal.SIGKILL)
    assert select.select([killed.descriptors[1]], [], [], 30)[0]
    assert killed.take() == (probe_of("waits"), None)

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
from exportdoctor.worker.shared_children import SharedChildren


def probe_of(fqn: str) -> Probe:
    return Probe(part="p", fqn=fqn)


def attempt(probe: Probe) -> Outcome | None:
    """Passes, with the number of the process in its note, but for the names of other ends."""
    if probe.fqn == "waits":
        time.sleep(60)
    status = OutcomeStatus.FAILED if probe.fqn == "fails" else OutcomeStatus.PASSED
    return None if probe.fqn == "in doubt" else Outcome(probe=probe.id, status=status, note=str(os.getpid()))


@pytest.fixture
def shared() -> Iterator[SharedChildren]:
    shared = SharedChildren()
    for _ in range(2):
        shared.add(attempt, close=shared.descriptors)
    yield shared
    shared.end_all()


def test_two_children_attempt_side_by_side_and_each_again_and_again(shared: SharedChildren) -> None:
    for fqn in ("a", "b", "c"):
        for child in shared.children:
            assert shared.free() is child
            child.start(probe_of(f"{fqn}.{child.pid}"))
        assert shared.free() is None
        for child in reversed(shared.children):
            told = shared.take(child)
            assert told is not None
            probe, outcome = told
            assert probe.fqn == f"{fqn}.{child.pid}"
            assert outcome is not None
            assert (outcome.probe, outcome.note) == (probe.id, str(child.pid))
            assert child.probe is None


@pytest.mark.parametrize("fqn", ["fails", "in doubt"])
def test_what_does_not_pass_has_no_outcome_and_ends_its_child_alone(shared: SharedChildren, fqn: str) -> None:
    ends, other = shared.children
    ends.start(probe_of(fqn))
    other.start(probe_of("passes"))
    assert shared.take(ends) == (probe_of(fqn), None)
    assert shared.children == [other]
    assert shared.take(ends) is None  # an event that came before it was taken
    assert (told := shared.take(other)) is not None
    assert told[1] is not None


def test_a_child_that_is_killed_can_be_read_at_once(shared: SharedChildren) -> None:
    shared.add(attempt, close=shared.descriptors)
    during, before, idle = shared.children
    during.start(probe_of("waits"))
    for child in (during, before, idle):
        os.kill(child.pid, signal.SIGKILL)
        assert select.select([child.descriptors[1]], [], [], 30)[0]
    before.start(probe_of("later"))
    assert shared.take(during) == (probe_of("waits"), None)
    assert shared.take(before) == (probe_of("later"), None)
    assert shared.take(idle) is None
    assert not shared.children


def test_the_end_of_all_kills_what_still_attempts(shared: SharedChildren) -> None:
    pids = [child.pid for child in shared.children]
    for child in shared.children:
        child.start(probe_of("waits"))
    shared.end_all()
    assert not shared.children
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

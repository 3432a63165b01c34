"""A probe asked early or once for two parts has the same outcome: reported once and in order, or asked again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from exportdoctor.core.protocol.scan import Capture, Captured, Open, Opened, Prepare, Prepared
from exportdoctor.core.records.outcome import OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.run_state import fold
from exportdoctor.engine.pool.running_probe import RunningProbe
from exportdoctor.engine.pool.worker_pool import Pool
from exportdoctor.process.launcher import Fork
from exportdoctor.targets import resolve
from scanning import events_of
from tiny_configs import FAMILIES

pytestmark = pytest.mark.slow
PROBE = Probe(part="default", fqn="", timeout=120)


@pytest.fixture
def llama(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(FAMILIES["llama"]))
    return str(tmp_path)


@contextmanager
def opened_pool(ref: str, tmp_path: Path) -> Iterator[Pool]:
    target = TargetRef(ref=ref)
    with closing(
        Pool(Fork(resolve(target)), Open(target=target, logs=str(tmp_path)), jobs=2, log=None, by_cpu_time=True)
    ) as p:
        opened = p.open()
        assert isinstance(opened, Opened)
        assert opened.weights == "fake"
        yield p


def begun(pool: Pool) -> tuple[Prepared, RunningProbe]:
    early = pool.attempt_early(Prepare(part="default"), PROBE)
    assert early is not None
    return early


def captured(pool: Pool) -> Captured:
    reply = pool.capture_part(Capture(part="default"))
    assert isinstance(reply, Captured)
    return reply


@pytest.mark.long
def test_an_early_attempt_is_told_once_and_after_its_part_was_captured(llama: str) -> None:
    events = events_of(llama)
    told = [event for event in events if isinstance(event, ev.PartCaptured | ev.ProbeStarted | ev.ProbeFinished)]
    assert [type(event) for event in told] == [ev.PartCaptured, ev.ProbeStarted, ev.ProbeFinished]
    assert [event.status for event in events if isinstance(event, ev.ModuleJudged) and "" in event.fqns] == ["pass"]


@pytest.mark.long
def test_inputs_that_were_made_early_make_the_question_that_the_capture_finds(llama: str, tmp_path: Path) -> None:
    with opened_pool(llama, tmp_path) as pool:
        prepared, flight = begun(pool)
        part = captured(pool)
        assert part.modules[0].calls[0].question == prepared.question
        answered = pool.adopt(flight, PROBE)
        assert answered is not None
        assert answered.result(timeout=120).passed


@pytest.mark.long
def test_an_abandoned_attempt_leaves_room_for_the_same_probe(llama: str, tmp_path: Path) -> None:
    with opened_pool(llama, tmp_path) as pool:
        _, flight = begun(pool)
        captured(pool)
        pool.abandon(flight)
        outcome = pool.submit(PROBE).result(timeout=120)
    assert outcome.passed
    assert outcome.signal is None


@pytest.mark.long
def test_an_early_attempt_that_is_lost_with_its_worker_is_asked_again(llama: str, tmp_path: Path) -> None:
    with opened_pool(llama, tmp_path) as pool:
        _, flight = begun(pool)
        os.kill(pool._workers[0].client.pid, signal.SIGKILL)
        assert flight.future.exception(timeout=120) is not None
        captured(pool)
        assert pool.adopt(flight, PROBE) is None
        assert pool.submit(PROBE).result(timeout=120).passed


@pytest.mark.night
def test_an_equal_question_of_two_parts_is_asked_once_and_answered_for_both() -> None:
    events = events_of("Qwen2.5-VL-3B-tiny", parts=("vision", "full"))
    started = [event.probe.fqn for event in events if isinstance(event, ev.ProbeStarted) and event.probe.part == "full"]
    vision, full = ({m.fqn: m.status for m in part.modules} for part in fold(events).report().parts)
    assert full["model.visual.blocks.0.attn"] == vision["model.visual.blocks.0.attn"] == "fails_own"
    assert "model.visual.blocks.0.attn" not in started
    assert "model.language_model" in started


COUNTING = """
import os

import torch

WORKER = os.getpid()

class Part(torch.nn.Module):
    def __init__(self, fails):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.fails = fails

    def forward(self, x):
        if os.getpid() == WORKER:  # and not an attempt's
            with open(FILE, "a") as file:
                print(len(x), file=file)
        x = self.inner(x)
        return x + int(x.sum()) if self.fails else x

def build(fails):
    inputs = [((torch.zeros(rows, 4),), {}) for rows in (3, 5)]
    return {
        "module": Part(fails), "args": inputs[0][0], "dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},),
        "more_inputs": [inputs[1]],
    }

def passing():
    return build(False)

def failing():
    return build(True)
"""


@pytest.mark.long
@pytest.mark.parametrize(("factory", "sizes"), [("passing", ["3"]), ("failing", ["3", "5"])])
def test_a_forward_runs_at_other_sizes_where_its_part_fails(tmp_path: Path, factory: str, sizes: list[str]) -> None:
    counted = tmp_path / "sizes"
    (tmp_path / "target.py").write_text(COUNTING.replace("FILE", repr(str(counted))))
    events = events_of(f"{tmp_path / 'target.py'}:{factory}")
    assert counted.read_text().split() == sizes
    captured = [event.captured for event in events if isinstance(event, ev.PartCaptured)]
    assert [one.at_one_size for one in captured] == [True, False][: len(sizes)]
    inner = next(module for module in captured[-1].modules if module.fqn == "inner")
    assert bool(inner.calls[0].inputs[0].axes) == (factory == "failing")


@pytest.mark.long
def test_what_a_second_forward_tells_later_is_what_it_tells_at_once(llama: str, tmp_path: Path) -> None:
    with opened_pool(llama, tmp_path) as pool:
        alone = pool.capture_part(Capture(part="default", at_one_size=True))
        later = captured(pool)
    with opened_pool(llama, tmp_path) as pool:
        at_once = captured(pool)
    assert isinstance(alone, Captured)
    assert (alone.at_one_size, later.at_one_size, at_once.at_one_size) == (True, False, False)
    assert alone.modules[0].calls[0].question == later.modules[0].calls[0].question
    assert (later.modules, later.groups, later.axes) == (at_once.modules, at_once.groups, at_once.axes)


@pytest.mark.long
def test_an_urgent_probe_goes_first_while_a_processor_is_left_to_the_others(llama: str, tmp_path: Path) -> None:
    with opened_pool(llama, tmp_path) as pool:
        found = captured(pool)
        fqns = [module.fqn for module in found.modules if module.calls][:6]
        flights = [pool.submit(Probe(part="default", fqn=fqn, timeout=120), urgent=fqn in fqns[4:]) for fqn in fqns]
        assert all(flight.result().status in (OutcomeStatus.PASSED, OutcomeStatus.FAILED) for flight in flights)
        order = [pool.started.get()[0].fqn for _ in fqns]
    assert order.index(fqns[4]) == 2  # two were under way when it came


@pytest.mark.long
def test_a_parts_root_goes_before_what_is_urgent(llama: str, tmp_path: Path) -> None:
    with opened_pool(llama, tmp_path) as pool:
        found = captured(pool)
        fqns = [module.fqn for module in found.modules if module.calls][:6]
        probes = [Probe(part="default", fqn=fqn, timeout=120) for fqn in fqns]
        flights = [pool.submit(one, urgent=True, root=one is probes[-1]) for one in probes]
        assert all(flight.result().status in (OutcomeStatus.PASSED, OutcomeStatus.FAILED) for flight in flights)
        order = [pool.started.get()[0].fqn for _ in fqns]
    assert order.index(fqns[-1]) == 2  # two were under way when it came


def test_what_a_spare_attempt_printed_goes_with_it(llama: str, tmp_path: Path) -> None:
    with opened_pool(llama, tmp_path) as pool:
        captured(pool)
        spare = pool.attempt_spare(PROBE)
        assert spare is not None
        (log := tmp_path / f"{PROBE.id}.log").write_text("printed")
        pool.discard(spare)
        assert not log.exists()


class Undecided(nn.Module):
    """Nothing cures it but to fix its value: all shims that may are tried before."""

    def forward(self, x: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        height, width = size.tolist()
        scale = min(8 / height, 4 / width)
        return x * int(height * scale)


def undecided() -> Any:
    return Undecided(), (torch.randn(3, 4), torch.tensor([2, 3])), {}, {"x": {0: Dim("rows")}, "size": None}


@pytest.mark.long
@pytest.mark.slow
def test_what_is_attempted_ahead_changes_nothing_but_the_time() -> None:
    """The search for a cure is the same chain of probes, with the same outcomes, with one job or several."""
    chains = []
    for jobs in (1, 3):
        events = events_of(f"{__file__}:undecided", cure=True, jobs=jobs)
        finished = [one for one in events if isinstance(one, ev.ProbeFinished) and one.probe.shims]
        started = {one.probe.id for one in events if isinstance(one, ev.ProbeStarted)}
        assert {one.probe.id for one in finished} <= started
        chains.append([(one.probe.shims, one.outcome.status) for one in finished])
    assert chains[0] == chains[1]
    assert len(chains[0]) > 8

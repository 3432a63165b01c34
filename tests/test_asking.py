"""What is asked early, or once for two parts, has the same answer: told once and in order, or asked again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from exportdoctor.core import event as ev
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol import Capture, Captured, Open, Opened, Prepare, Prepared
from exportdoctor.core.state import fold
from exportdoctor.core.target import TargetRef
from exportdoctor.engine.launch import Fork
from exportdoctor.engine.pool import Pool
from exportdoctor.engine.watch import Flight
from exportdoctor.targets import resolve
from scanning import events_of
from targets_tiny import FAMILIES

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
        Pool(Fork(resolve(target)), Open(target=target, logs=str(tmp_path)), jobs=2, log=None, patient=True)
    ) as p:
        opened = p.open()
        assert isinstance(opened, Opened)
        assert opened.weights == "fake"
        yield p


def begun(pool: Pool) -> tuple[Prepared, Flight]:
    early = pool.attempt_early(Prepare(part="default"), PROBE)
    assert early is not None
    return early


def captured(pool: Pool) -> Captured:
    reply = pool.capture(Capture(part="default"))
    assert isinstance(reply, Captured)
    return reply


def test_an_early_attempt_is_told_once_and_after_its_part_was_captured(llama: str) -> None:
    events = events_of(llama)
    told = [event for event in events if isinstance(event, ev.PartCaptured | ev.ProbeStarted | ev.ProbeFinished)]
    assert [type(event) for event in told] == [ev.PartCaptured, ev.ProbeStarted, ev.ProbeFinished]
    assert [event.status for event in events if isinstance(event, ev.ModuleJudged) and "" in event.fqns] == ["pass"]


def test_inputs_that_were_made_early_make_the_question_that_the_capture_finds(llama: str, tmp_path: Path) -> None:
    with opened_pool(llama, tmp_path) as pool:
        prepared, flight = begun(pool)
        part = captured(pool)
        assert part.modules[0].calls[0].question == prepared.question
        answered = pool.adopt(flight, PROBE)
        assert answered is not None
        assert answered.result(timeout=120).passed


def test_an_abandoned_attempt_leaves_room_for_the_same_probe(llama: str, tmp_path: Path) -> None:
    with opened_pool(llama, tmp_path) as pool:
        _, flight = begun(pool)
        captured(pool)
        pool.abandon(flight)
        outcome = pool.submit(PROBE).result(timeout=120)
    assert outcome.passed
    assert outcome.signal is None


def test_an_early_attempt_that_is_lost_with_its_worker_is_asked_again(llama: str, tmp_path: Path) -> None:
    with opened_pool(llama, tmp_path) as pool:
        _, flight = begun(pool)
        os.kill(pool._workers[0].channel.pid, signal.SIGKILL)
        assert flight.future.exception(timeout=120) is not None
        captured(pool)
        assert pool.adopt(flight, PROBE) is None
        assert pool.submit(PROBE).result(timeout=120).passed


def test_an_equal_question_of_two_parts_is_asked_once_and_answered_for_both() -> None:
    events = events_of("Qwen2.5-VL-3B-tiny", parts=("vision", "full"))
    started = [event.probe.fqn for event in events if isinstance(event, ev.ProbeStarted) and event.probe.part == "full"]
    vision, full = ({m.fqn: m.status for m in part.modules} for part in fold(events).report().parts)
    assert full["model.visual.blocks.0.attn"] == vision["model.visual.blocks.0.attn"] == "fails_own"
    assert "model.visual.blocks.0.attn" not in started
    assert "model.language_model" in started

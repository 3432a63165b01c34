"""A target that is built and captured in this process."""

from __future__ import annotations

import signal
from pathlib import Path

from exportdoctor.core.protocol.scan import Capture, Open
from exportdoctor.core.records.target import TargetRef
from exportdoctor.worker.open_target import OpenTarget

ALARM = """
import signal
import torch

class Alarmed(torch.nn.Module):
    def forward(self, x):
        signal.setitimer(signal.ITIMER_PROF, 1000)
        signal.alarm(1000)
        return x

def build():
    signal.alarm(1000)
    return Alarmed(), (torch.ones(3),)
"""


def test_an_alarm_of_the_target_does_not_end_the_worker_later(tmp_path: Path) -> None:
    path = tmp_path / "alarm.py"
    path.write_text(ALARM)
    target = OpenTarget()
    target.open(Open(target=TargetRef(ref=f"{path}:build"), isolation="process"))
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    target.capture(Capture(part="default"))
    assert [signal.getitimer(timer)[0] for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF)] == [0, 0]

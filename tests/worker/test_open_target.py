"""A target that is built and captured in this process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

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


REPLACED = """
import functools
import torch

{code}

def build():
    return torch.nn.Identity(), (torch.ones(3),)
"""


@pytest.mark.parametrize(
    ("code", "by"),
    [
        ("def refuse(*args, **kwargs):\n    raise RuntimeError\n\ntorch.export.export = refuse", "refuse"),
        (
            "class Refuse:\n    def __getattr__(self, name):\n        raise RuntimeError\n\n"
            "torch.export.export = Refuse()",
            "Refuse",
        ),
        (
            "@functools.wraps(torch.export.export)\ndef same(*args, **kwargs):\n"
            "    return same.__wrapped__(*args, **kwargs)\n\ntorch.export.export = same",
            "",
        ),
        ("def turn(*args):\n    pass\n\nturn.__wrapped__ = turn\ntorch.export.export = turn", "turn"),
        ('exec("def made(): ...")\ntorch.export.export = made', "made"),
        ("", ""),
    ],
    ids=[
        "a function",
        "an object whose attributes raise",
        "a wrapper that says what it wraps",
        "one that wraps itself",
        "one without a file",
        "nothing",
    ],
)
def test_what_stands_for_an_exporter_of_torch_is_told(
    code: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.export, "export", torch.export.export)  # the target's is taken back afterwards
    path = tmp_path / "replaced.py"
    path.write_text(REPLACED.format(code=code))
    opened = OpenTarget().open(Open(target=TargetRef(ref=f"{path}:build"), isolation="process"))
    notes = [note for note in opened.notes if "torch.export.export" in note]
    assert len(notes) == bool(by)
    assert all(f"replaced it by {by} (" in note for note in notes)

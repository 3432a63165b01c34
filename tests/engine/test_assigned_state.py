"""State that forward assigns and the program loses: the line, what to write, and the cure, also behind a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from exportdoctor.core.run.report import Report
from exportdoctor.report.wording import next_commands, next_step, why
from exportdoctor.report.wording.findings import only_alone
from scanning import scan_file

MODELS = """
import torch
from torch import nn

class Track(nn.Module):
    def __init__(self, guarded):
        super().__init__()
        for name in "abcd":
            self.register_buffer(name, torch.randn(4))
        self.guarded = guarded

    def forward(self, x):
        if self.guarded and x.sum() > 1e6:
            x = x.clone()
        self.a = self.a * 0.5 + x.mean(0)
        self.b, self.c = self.c, self.a + 1
        self.d = x.amax(0)
        return x + self.b

class Follows(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = torch.zeros(4)

    def forward(self, x):
        self.state = self.state + x[0]
        return x + self.state

class Exchanges(Track):
    def forward(self, x):
        self.a, self.b = self.b, self.a
        return x

class Odd:
    def __init__(self, value):
        self.value = value

class Gives(nn.Module):
    def forward(self, x):
        return Odd(x * 2)

class GivesOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = Gives()

    def forward(self, x):
        return self.last(x if x.sum() > 0 and x.tolist() else -x)

class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.randn(1, 4))
        self.register_buffer("even", torch.zeros(1).expand(4))

    def forward(self, x):
        self.cache = torch.cat([self.cache, x])
        return x + self.cache.sum(0) + self.even

class Scheduled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.tensor(0))

    def forward(self, x):
        factor = min(1.0, (self.step.item() + 1) / 10)
        self.step += 1
        return x * factor

class Clipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = x * 2 if x.sum() > 0 else x - 1
        self.layer.weight.data.clamp_(-0.1, 0.1)
        return self.layer(y)

class Collects(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([Sets(), Sets()])

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x, sum(step.extra for step in self.steps)

class Sets(nn.Module):
    def __init__(self):
        super().__init__()
        self.extra = None

    def forward(self, x):
        self.extra = x.mean()
        return x * 2 if x.sum() > 0 else x - 1

X = torch.randn(3, 4)

def scheduled():
    return nn.Sequential(Scheduled()).eval(), (X,)

def clipped():
    return Clipped().eval(), (X,)

def collects():
    return Collects().eval(), (X,)

def grows():
    return nn.Sequential(Grows()).eval(), (X,)

def gives_on():
    return GivesOn().eval(), (X,)

def lost():
    return nn.Sequential(Track(False), nn.Linear(4, 2)).eval(), (X,)

def guarded():
    return nn.Sequential(Track(True), nn.Linear(4, 2)).eval(), (X,)

def plain():
    return nn.Sequential(Follows()).eval(), (X,)

def exchanged():
    return Exchanges(False).eval(), (X,)
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "assigned.py"
    path.write_text(MODELS)
    return path


def line_of(text: str) -> int:
    return MODELS.splitlines().index(text) + 1


def shims_of(report: Report) -> list[str]:
    (part,) = report.parts
    assert part.prescription is not None
    return [step.shim for step in part.prescription.steps]


@pytest.mark.long
def test_a_lost_buffer_has_its_line_what_to_write_and_a_cure(models: Path) -> None:
    report = scan_file(models, factory="lost", cure=True)
    (finding,), line = report.findings, line_of("        self.a = self.a * 0.5 + x.mean(0)")
    assert (finding.kind, finding.module, finding.function, finding.line) == ("numbers", "0", "Track.forward", line)
    assert finding.exception.message.endswith(
        "the program leaves the buffers 0.a, 0.b, 0.c and 1 more otherwise than eager: a call assigns "
        f"0.a (assigned.py:{line}), 0.b (assigned.py:{line + 1}), 0.c (assigned.py:{line + 1}) and 1 more"
    )
    assert "loses such an assignment in a submodule" in why(finding)
    assert next_step(finding).startswith("Write `self.a.copy_(self.a * 0.5 + x.mean(0))` in place of `self.a = ")
    assert not any(command.startswith("exportdoctor numbers") for command, _ in next_commands(report))
    assert report.parts[0].verdict == "cured"
    assert shims_of(report) == ["assigned-buffers"]


@pytest.mark.long
def test_a_buffer_that_is_lost_behind_another_failure_is_cured_with_it(models: Path) -> None:
    report = scan_file(models, factory="guarded", cure=True)
    assert [(one.kind, one.behind) for one in report.findings] == [("data_dependent_guard", None), ("numbers", "F1")]
    assert report.parts[0].verdict == "cured"
    assert "assigned-buffers" in shims_of(report)


@pytest.mark.long
def test_a_tensor_that_is_no_buffer_has_its_line_and_what_to_do(models: Path) -> None:
    report = scan_file(models, factory="plain", cure=True)
    (finding,), line = report.findings, line_of("        self.state = self.state + x[0]")
    assert (finding.module, finding.line) == ("0", line)
    assert f"eager keeps state in 0.state (assigned.py:{line}), and the program has" in finding.exception.message
    assert "register_buffer" in next_step(finding)
    assert report.parts[0].verdict == "fails"


@pytest.mark.long
def test_buffers_of_the_root_that_are_exchanged_end_the_export_and_are_cured(models: Path) -> None:
    report = scan_file(models, factory="exchanged", cure=True)
    (finding,) = report.findings
    assert finding.exception.message.startswith("Node copy__default")
    assert "by a node that it refuses" in why(finding)
    assert shims_of(report) == ["assigned-buffers"]


@pytest.mark.long
def test_a_buffer_that_grows_is_not_advised_to_be_written_into(models: Path) -> None:
    """One whose elements share memory (`expand`) ended the scan, as it could not be put back."""
    report = scan_file(models, factory="grows", cure=True)
    (finding,) = report.findings
    assert finding.exception.message.endswith("in another shape")
    assert next_step(finding) == "Make it an input, and return what it becomes."
    assert any("with none of the shims tried the program does the same as eager" in note for note in report.notes)


@pytest.mark.long
def test_what_a_submodule_gives_may_be_the_parts_own_output(models: Path) -> None:
    """The part does not get as far, so it was said to be no failure of it."""
    report = scan_file(models, factory="gives_on", cure=False)
    (finding,) = [one for one in report.findings if one.kind == "unregistered_pytree"]
    assert (finding.module, finding.only_alone) == ("last", False)
    assert not next_step(finding).startswith("Nothing")


@pytest.mark.long
def test_a_program_is_proved_with_buffers_of_its_own(models: Path) -> None:
    """It advanced the module's, from which hoist-numbers reads: a file does not, and export rejected the cure."""
    report = scan_file(models, factory="scheduled", cure=True)
    tried = {one.shim: one.result for one in report.findings[0].shims_tried}
    assert tried["hoist-numbers"] == "error"


@pytest.mark.long
def test_a_leaked_constant_is_a_later_failure(models: Path) -> None:
    """The shims that cure both were never tried together."""
    report = scan_file(models, factory="clipped", cure=True)
    assert report.parts[0].verdict == "cured"
    assert shims_of(report) == ["branch-as-where", "data-as-detach"]


@pytest.mark.long
def test_what_only_stand_ins_show_is_said_to_be_such(models: Path) -> None:
    """A stand-in does not set what its child sets: `sum` of None was told to fail in the model."""
    report = scan_file(models, factory="collects", cure=True)
    assert report.parts[0].verdict == "cured"
    of_stand_ins = [one for one in report.findings if one.with_stand_ins]
    assert [one.module for one in of_stand_ins] == [""]
    assert of_stand_ins[0].behind is None
    assert only_alone(of_stand_ins[0]).startswith("Seen only with stand-ins for the submodules of (root)")

"""A dynamic size that torch's own code takes as a number is not called a limit of the model's code, and the reverse."""

from __future__ import annotations

from pathlib import Path

import pytest

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.report import render
from exportdoctor.report.wording import next_step
from exportdoctor.repro.recipient import recipient_of
from scanning import scan_file

pytestmark = pytest.mark.slow

MODELS = """
import numpy as np
import torch
from torch import nn
from torch.export import Dim

class Model(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.linear = nn.Linear(4, 4)
        self.rnn = nn.LSTM(4, 3)

    def forward(self, x):
        return self.compute(self, x)

def made(compute, sizes=(3, 4), dim=0):
    return Model(compute).eval(), (torch.randn(*sizes),), {}, {"x": {dim: Dim("size")}}

def back(self, x):
    window = torch.hann_window(16)
    spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
    return torch.istft(spectrum, 16, 4, window=window, length=x.shape[1])

def jvp(): return made(lambda self, x: torch.func.jvp(self.linear, (x,), (x,))[1])
def istft(): return made(back, (2, 70), 1)
def lstm(): return made(lambda self, x: self.rnn(x)[0])
def one_hot(): return made(lambda self, x: nn.functional.one_hot((x[:, 0] > 0).long(), x.shape[0]))

class Beside(nn.Module):
    # the sizes of two inputs are tied before one of them is fixed

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, noise):
        value, change = torch.func.jvp(self.linear, (x,), (noise,))
        return value + change

def beside():
    size = Dim("size")
    return Beside().eval(), (torch.randn(3, 4), torch.randn(3, 4)), {}, {"x": {0: size}, "noise": {0: size}}

def counted(): return made(lambda self, x: sum(x[i] for i in range(x.shape[0])))
def number(): return made(lambda self, x: x * int(x.shape[0]))
def rows(): return made(lambda self, x: sum(row for row in x))
def view(): return made(lambda self, x: x.view(3, 4))
def added(): return made(lambda self, x: x + torch.ones(3, 4))
def array(): return made(lambda self, x: x + torch.from_numpy(np.zeros((x.shape[0], 1), dtype="float32")))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sizes") / "sizes.py"
    file.write_text(MODELS)
    return file


@pytest.mark.long
@pytest.mark.parametrize(
    ("factory", "function"),
    [("jvp", "jvp"), ("beside", "jvp"), ("istft", "istft"), ("lstm", "LSTM"), ("one_hot", "one_hot")],
)
def test_what_torchs_code_fixes_is_torchs(path: Path, factory: str, function: str) -> None:
    report = scan_file(path, factory=factory)
    finding = report.findings[0]
    seen = {(one.kind, one.fixed_by) for one in report.findings}
    assert seen == {(FailureKind.DYNAMIC_DIM_SPECIALISED, function)}
    assert not finding.documented
    assert not finding.known_issues
    assert recipient_of(finding).package == "torch"
    text = " ".join(render(report, "text").split())
    assert f"torch's own code below {function} takes its size as a number" in text
    assert "documented limit" not in text
    assert function in next_step(finding)


@pytest.mark.long
@pytest.mark.parametrize("factory", ["counted", "number", "rows", "view", "added", "array"])
def test_what_the_users_code_fixes_is_the_users(path: Path, factory: str) -> None:
    report = scan_file(path, factory=factory)
    (finding,) = report.findings
    assert (finding.kind, finding.fixed_by) == (FailureKind.DYNAMIC_DIM_SPECIALISED, "")
    assert finding.documented
    assert "documented limit of torch.export" in " ".join(render(report, "text").split())

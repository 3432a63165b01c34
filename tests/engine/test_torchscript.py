"""TorchScript modules: they tell of no call, and torch.export does not support them."""

from __future__ import annotations

from pathlib import Path

import pytest

from exportdoctor.report import render, wording
from exportdoctor.report.canvas import Style
from exportdoctor.report.explanation_page import as_text, finding_blocks
from scanning import scan_file

pytestmark = [pytest.mark.slow, pytest.mark.long]

MODELS = """import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.jit.script(nn.Sequential(nn.ReLU()))

    def forward(self, x):
        return self.act(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre, self.block, self.spare = nn.Linear(4, 4), Block(), nn.Linear(4, 4)

    def forward(self, x):
        return self.block(self.pre(x))


def below():
    return Net().eval(), (torch.ones(3, 4),)


def root():
    return torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()), (torch.ones(3, 4),)
"""


@pytest.mark.parametrize("factory", ["below", "root"])
def test_a_torchscript_module_is_not_said_to_be_never_called(tmp_path: Path, factory: str) -> None:
    """Story: "never called: act" of a scripted activation that the forward calls, and an error of its own code."""
    file = tmp_path / "scripted.py"
    file.write_text(MODELS)
    report = scan_file(file, factory=factory)
    status = {module.fqn: module.status for module in report.parts[0].modules}
    inner = "block.act.0" if factory == "below" else "0"
    assert status[inner] == "unknown"
    text = render(report, "text", Style(width=120))
    if factory == "below":
        assert status["spare"] == "not_called"
        assert "✗ block " in text
    (finding,) = report.findings
    assert "torch.export does not support TorchScript modules" in wording.why(finding)
    assert wording.next_step(finding).startswith("Use the Python module that was scripted")
    explained = as_text(finding_blocks(finding, report), Style())
    assert "torch.jit.script and torch.jit.trace compile" in explained
    assert "examples below" not in explained

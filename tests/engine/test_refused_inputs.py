"""An object that torch refuses as an input is one failure, however many modules are given it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanning import scan_file

PROGRAM = """
import torch
from torch import nn


class Memory:
    def __init__(self):
        self.steps = []


class Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, memory):
        memory.steps.append(1)
        return self.linear(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.leaf = Leaf()

    def forward(self, x, memory):
        return self.leaf(x, memory)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x, memory):
        for block in self.blocks:
            x = block(x, memory)
        return x


def build():
    return Model().eval(), (torch.rand(3, 4), Memory())
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["export", "export-strict"])
def test_an_object_that_is_refused_is_told_once_where_it_comes_in(exporter: str, tmp_path: Path) -> None:
    path = tmp_path / "refused.py"
    path.write_text(PROGRAM)
    report = scan_file(path, exporter=exporter, exhaustive=True)
    (finding,) = report.findings
    assert finding.module == ""
    assert finding.kind == "unregistered_pytree"
    failing = {module.fqn for module in report.parts[0].modules if module.status == "fails_own"}
    assert set(finding.modules) == failing
    assert {"", "blocks.0", "blocks.1", "blocks.0.leaf", "blocks.1.leaf"} == failing

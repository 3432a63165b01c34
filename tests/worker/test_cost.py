"""An export that passes and costs more than the user allows is a finding at the line where the cost comes up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exportdoctor.core.errors import UsageError
from exportdoctor.report.wording.findings import next_step
from exportdoctor.repro.find_probe import probe_of
from scanning import scan_file

pytestmark = pytest.mark.slow

HEAD = """
import numpy as np
import torch
from torch import nn


class Own(nn.Module):
    def forward(self, x):
"""
TAIL = """

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = Own()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.own(x))


def build():
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    return {"module": Network().eval(), "args": (torch.ones(30, 4),), "dynamic_shapes": shapes}
"""
SIZES = """
        rows, total = x.shape[0], 0
        for step in range(2, 40):
            if (rows * step + 3) % (step + 1) == rows * rows - step:
                total = total + 1
        return x + total
"""
MEMORY = """
        large = np.ones(30_000_000)
        kept = float(large.sum())
        return x + kept
"""


@pytest.mark.night
def test_time_that_guards_take_is_told_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "sizes.py"
    file.write_text(f"{HEAD}{SIZES}{TAIL}")
    report = scan_file(file, slow=0.7)
    (finding,) = report.findings
    assert (finding.module, finding.kind, finding.own_code) == ("own", "costly", True)
    assert (finding.source or "").startswith("if (rows * step")
    assert re.search("symbolic algebra|guards on symbolic sizes", finding.exception.message)
    assert {module.fqn: module.status for module in report.parts[0].modules}["head"] == "pass"


@pytest.mark.long
def test_memory_is_told_with_the_line_that_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "memory.py"
    file.write_text(f"{HEAD}{MEMORY}{TAIL}")
    (finding,) = scan_file(file, heavy=100.0).findings
    assert (finding.module, finding.kind) == ("own", "costly")
    assert finding.exception.message.endswith("% of it went to the model's own code")
    assert "outside forward" in next_step(finding)
    with pytest.raises(UsageError, match="F1 exports, so that no script fails"):
        probe_of((), finding)
    assert finding.exception.type.endswith("HeavyExport")
    assert finding.source == "large = np.ones(30_000_000)"


@pytest.mark.long
def test_both_limits_are_told_where_both_are_exceeded(tmp_path: Path) -> None:
    file = tmp_path / "memory.py"
    file.write_text(f"{HEAD}{MEMORY}{TAIL}")
    found = [one.exception.message for one in scan_file(file, slow=0.001, heavy=100.0).findings if one.module == "own"]
    assert re.search(r"more than 0\.001 s.* It also takes \d+ MiB of memory: more than 100 MiB", " ".join(found))

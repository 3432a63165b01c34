"""What only a fixed size or value has shown is no finding of the model: a note of that try."""

from __future__ import annotations

from pathlib import Path

import pytest

from exportdoctor.report import render
from scanning import scan_file

RAGGED = '''
import torch
from torch import nn

class Pool(nn.Module):
    """Its slices need numbers. With the lengths fixed they end at a row that must be there; any number would do."""

    def forward(self, rows, lengths):
        ends = lengths.cumsum(0)
        starts = ends - lengths
        return torch.stack([
            rows[start:end].mean(0) if end > start else rows.new_zeros(4)
            for start, end in zip(map(int, starts.tolist()), map(int, ends.tolist()))
        ])

def build():
    sizes = {"rows": {0: torch.export.Dim("count")}, "lengths": None}
    return Pool().eval(), (torch.randn(12, 4), torch.tensor([5, 4, 3])), {}, sizes
'''


@pytest.mark.long
@pytest.mark.slow
def test_what_frozen_lengths_ask_of_the_rows_is_told_at_the_try(tmp_path: Path) -> None:
    path = tmp_path / "ragged.py"
    path.write_text(RAGGED)
    report = scan_file(path, cure=True)
    assert report.parts[0].prescription is not None
    (finding,) = report.findings
    assert finding.kind.is_data_dependent
    behind = next(one for one in finding.shims_tried if one.shim == "frozen-values")
    assert (behind.result, behind.next) == ("moved", None)
    assert behind.note.startswith("UserError at ragged.py:")
    assert "Constraints violated (count)" in behind.note
    text = " ".join(render(report, "text").split())
    assert f"gets past this, then {behind.note}" in text
    assert "Masked by" not in text


STEPPED = """
import torch
from torch import nn
from torch.export import Dim

class Stepped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        found = {}
        for t in range(x.shape[0]):
            found[t] = self.layer(x[t]) * t + found.get(t - 1, 0)
        return found[x.shape[0] - 1]

def build():
    dims = {0: Dim("time", min=2, max=64), 1: Dim("batch", min=2, max=64)}
    return Stepped().eval(), (torch.randn(5, 4, 6),), {}, {"x": dims}
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_cure_that_fixes_one_size_is_proved_at_others_of_the_rest(tmp_path: Path) -> None:
    """All sizes were drawn together, which the program refuses, and it was compared at the example's alone."""
    path = tmp_path / "stepped.py"
    path.write_text(STEPPED)
    (part,) = scan_file(path, cure=True).parts
    assert part.prescription is not None
    assert part.prescription.soundness == "specialised"
    assert part.prescription.proof is not None
    assert part.prescription.proof.kinds["sizes"] >= 1
    assert part.prescription.proof.kinds["values"] > 1
    assert part.prescription.proof.refused


FED = """
import torch
from torch import nn
from torch.export import Dim

class Fed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(7, 4), nn.GRUCell(4, 4), nn.Linear(4, 7)

    def forward(self, state, wanted):
        word, rows = torch.zeros(state.shape[0], dtype=torch.long), []
        for t in range(wanted.shape[1]):
            state = self.cell(self.words(word), state)
            rows.append(self.head(state))
            word = wanted[:, t]
        return torch.stack(rows, 1)

def build():
    sizes = ({0: Dim("batch")}, {0: Dim("batch"), 1: Dim("time", max=30)})
    return Fed(), (torch.randn(2, 4), torch.randint(0, 7, (2, 5))), {}, sizes
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_program_that_runs_without_gradients_alone_is_told_so(tmp_path: Path) -> None:
    """It was proved under torch.no_grad(), and raised where the user called it."""
    path = tmp_path / "fed.py"
    path.write_text(FED)
    (part,) = scan_file(path, cure=True).parts
    assert part.prescription is not None
    assert part.prescription.proof is not None
    assert any("runs under torch.no_grad() only" in note for note in part.prescription.proof.notes)

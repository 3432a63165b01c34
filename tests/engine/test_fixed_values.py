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

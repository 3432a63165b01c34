"""A program that refuses sizes leads the search to what lifts the refusal, before a size is fixed; what it refuses all
the same is told."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from exportdoctor.report import wording
from scanning import scan_file

FRAMED = '''
import torch
from torch import nn
from torch.export import Dim


class Framed(nn.Module):
    """A loop over one piece hides that the steps of the LSTM, which follow from a size, are fixed."""

    def __init__(self):
        super().__init__()
        self.shrink, self.lstm = nn.Conv1d(3, 4, kernel_size=4, stride=4), nn.LSTM(4, 4)

    def forward(self, sound):
        length = sound.shape[-1]
        pieces = [sound[..., at : at + length] for at in range(0, length, length)]
        return self.lstm(self.shrink(pieces[0]).permute(2, 0, 1))[0]


def build():
    torch.manual_seed(0)
    return Framed().eval(), (torch.randn(2, 3, 41),), {}, {"sound": {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}}
'''


@pytest.mark.long
@pytest.mark.slow
def test_what_lifts_the_refusal_of_other_sizes_is_found_before_sizes_are_fixed(tmp_path: Path) -> None:
    (tmp_path / "framed.py").write_text(FRAMED)
    (part,) = scan_file(tmp_path / "framed.py", cure=True).parts
    found = part.prescription
    assert found is not None
    assert (found.shims, found.soundness) == (("rnn-as-scan", "loops-by-count"), "precondition")


SUMMED = """
import torch
from torch import nn
from torch.export import Dim


class Summed(nn.Module):
    def forward(self, x):
        total = 0
        for step in range(x.shape[1]):
            total += x[:, step].tanh()
        return total


def build():
    return Summed(), (torch.randn(2, 5, 4),), {}, {"x": {1: Dim("steps")}}
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_bound_that_a_shim_leaves_is_lifted_by_another_and_no_finding(tmp_path: Path) -> None:
    """A guard that dynamo's own code asks for again was blamed on that code."""
    (tmp_path / "summed.py").write_text(SUMMED)
    report = scan_file(tmp_path / "summed.py", cure=True)
    assert [finding.guard.file for finding in report.findings if finding.guard] == [str(tmp_path / "summed.py")]
    found = report.parts[0].prescription
    assert found is not None
    assert (found.shims, found.soundness) == (("suggested-relations", "loops-as-scan"), "precondition")


CHUNKED = """
import torch
from torch import nn
from torch.export import Dim


class Chunked(nn.Module):
    def forward(self, x):
        length = x.shape[1]
        pad = (8 - length % 8) % 8
        if pad > 0:
            x = nn.functional.pad(x, (0, pad))
        chunks = x.reshape(x.shape[0], -1, 8)
        out = (chunks.cumsum(2) + chunks.sum(2, keepdim=True).cumsum(1)).reshape(x.shape[0], -1)
        if pad > 0:
            out = out[:, :length]
        return out.contiguous() + 1


def build():
    torch.manual_seed(0)
    return Chunked(), (torch.randn(2, 13),), {}, {"x": {0: Dim("batch", max=64), 1: Dim("length", max=4096)}}
"""


@pytest.mark.long
@pytest.mark.slow
def test_each_kind_of_size_that_an_assertion_refuses_is_told_with_a_set(tmp_path: Path) -> None:
    """Story: Mamba-2 refuses every length up to a chunk's and every multiple of it, and the report told of one."""
    (tmp_path / "chunked.py").write_text(CHUNKED)
    report = scan_file(tmp_path / "chunked.py", cure=True)
    found = report.parts[0].prescription
    assert found is not None
    assert found.proof is not None
    assert found.shims == ("defer-asserts",)
    raised = dict(zip(found.proof.refused_at, found.proof.refused_by, strict=True))
    assert {one.partition(",")[0] for one in raised} == {"2 x 2", "2 x 8"}
    assert len(set(raised.values())) == 2
    assert all("Runtime assertion failed for expression" in why and "on node" not in why for why in raised.values())
    (told,) = (line for line in wording.prescription(report.parts[0], report) if "refuses" in line)
    assert all(f"inputs {inputs} ({why})" in told for inputs, why in raised.items())
    report = msgspec.structs.replace(report, target=msgspec.structs.replace(report.target, in_memory=False))
    assert f"exportdoctor domain {report.target.ref}" in [command for command, _ in wording.next_commands(report)]

"""Inputs in objects that torch cannot take apart: their declared sizes are drawn and told as those of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from exportdoctor.cli.main import run as command_line
from exportdoctor.report.wording import chapter
from scanning import scan_file

pytestmark = [pytest.mark.long, pytest.mark.slow]

MODEL = """
from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn
from torch.export import Dim

@dataclass
class Seen:
    image: torch.Tensor
    state: torch.Tensor
    action: Optional[torch.Tensor] = None

class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, seen):
        return self.layer(seen.state).sum(0) + seen.image.mean()

class OfStrips(Policy):
    def forward(self, seen):
        return torch.stack(list(seen.image.unfold(0, 4, 4))).sum() + self.layer(seen.state)

def build(kind, *rest):
    dims = [{0: 4 * Dim("strips", min=2, max=8)}, {0: Dim("batch", min=2, max=8)}, *rest]
    return kind(), (Seen(torch.randn(12, 3), torch.randn(3, 5)),), {}, {"seen": dims}

def policy():
    return build(Policy)

def of_strips():
    return build(OfStrips)

def with_none():
    return build(Policy, None)

class Mark:
    pass

@dataclass
class Marked(Seen):
    mark: object = None

def with_object():
    seen = Marked(torch.randn(12, 3), torch.randn(3, 5), mark=Mark())
    return Policy(), (seen,), {}, {"seen": [{0: Dim("rows")}, {0: Dim("batch")}, None]}
"""


SHIMS = ("--shims", "register-dataclass-pytree")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path / "model.py"


def test_declared_sizes_in_a_dataclass_are_drawn(model: Path) -> None:
    report = scan_file(model, factory="policy", cure=True)
    (part,) = report.parts
    assert part.title == "4*strips, batch dynamic"
    assert part.prescription is not None
    assert [step.shim for step in part.prescription.steps] == ["register-dataclass-pytree"]
    assert part.prescription.soundness == "exact"
    assert part.prescription.proof is not None
    assert part.prescription.proof.kinds["sizes"] > 1


def test_a_cure_that_refuses_declared_sizes_is_not_called_exact(model: Path) -> None:
    """The sizes were not drawn, and the program was told to be exact for all of them."""
    (part,) = scan_file(model, factory="of_strips", cure=True).parts
    assert part.prescription is None or part.prescription.soundness == "specialised"


def test_why_no_shim_works_is_told(model: Path) -> None:
    report = scan_file(model, factory="with_object", cure=True)
    assert report.parts[0].prescription is None
    told = "\n".join(chapter(report.findings[0], report))
    assert "register-dataclass-pytree (does not work: ValueError: Unsupported input type " in told


def test_an_entry_for_a_field_that_is_none_is_left_out(model: Path) -> None:
    """torch takes a dataclass without such fields for what it is taken apart into."""
    (part,) = scan_file(model, factory="with_none", cure=True).parts
    assert part.title == "4*strips, batch dynamic"
    assert part.prescription is not None
    assert {step.shim for step in part.prescription.steps} == {"register-dataclass-pytree", "shapes-as-inputs"}
    assert part.prescription.soundness == "exact"


def test_a_file_of_it_is_compared_at_other_sizes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model.with_name("model.pt2")
    assert command_line(["export", f"{model}:policy", "--to", "pt2", "-o", str(path), "--quiet", *SHIMS]) == 0
    printed = capsys.readouterr().out
    assert "were not derived" not in printed
    assert "batch 3" in printed
    assert "sizes   " in printed

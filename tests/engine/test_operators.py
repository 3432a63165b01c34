"""An operator without a fake kernel: whether it is torch's own, and whether it lacks dynamic sizes alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.report.explanation_page import finding_blocks
from exportdoctor.report.wording import next_step, why
from scanning import scan_file

MODEL = """
import torch
from torch import nn
from torch.export import Dim

@torch.library.custom_op("operators::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

class Propagate(nn.Module):
    def forward(self, x, pairs, weights):
        matrix = torch.sparse_coo_tensor(pairs, weights, (x.shape[0], x.shape[0]))
        return torch.sparse.mm(matrix, x)

class Twice(nn.Module):
    def forward(self, x):
        return twice(x)

def build():
    nodes, edges = Dim("nodes", min=2), Dim("edges", min=2)
    inputs = (torch.randn(7, 5), torch.randint(0, 7, (2, 12)), torch.rand(12))
    return Propagate(), inputs, {}, {"x": {0: nodes}, "pairs": {1: edges}, "weights": {0: edges}}

def custom():
    return Twice(), (torch.randn(7, 5),), {}, {"x": {0: Dim("rows")}}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("operators") / "operators.py"
    file.write_text(MODEL)
    return file


def _told(finding: Finding, report: object) -> str:
    return "\n".join(text for _, text in finding_blocks(finding, report))  # type: ignore[arg-type]


def test_an_operator_of_torch_that_takes_static_sizes_lacks_dynamic_ones_alone(path: Path) -> None:
    report = scan_file(path)
    (finding,) = report.findings
    assert finding.kind == FailureKind.MISSING_FAKE_KERNEL
    assert finding.op == "aten._sparse_addmm.default"
    assert (finding.dimensions, finding.dimensions_passing) == (("nodes",), ("edges",))
    assert "not with dynamic ones" in why(finding)
    assert next_step(finding).startswith("Keep `nodes` static, or compute the same")
    told = _told(finding, report)
    assert "index_add_" in told
    assert "register_fake" not in told
    assert "custom" not in told


def test_an_operator_of_torch_that_takes_no_sizes_at_all_is_not_for_the_user_to_register(path: Path) -> None:
    (finding,) = scan_file(path).findings
    static = msgspec.structs.replace(finding, dimensions=(), dimensions_passing=None)
    assert "static" not in why(static)
    assert next_step(static) == "Compute the same with operators of torch that torch.export takes."


def test_a_custom_operator_still_needs_a_fake_kernel(path: Path) -> None:
    report = scan_file(path, factory="custom")
    (finding,) = report.findings
    assert finding.dimensions == ()
    assert "has no fake kernel" in why(finding)
    assert next_step(finding) == "Register a fake kernel with torch.library.register_fake."
    assert "@smooth.register_fake" in _told(finding, report)
    assert "index_add_" not in _told(finding, report)

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

pytestmark = [pytest.mark.slow, pytest.mark.long]

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

class Unique(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        rows = torch.unique_consecutive(x, dim=self.dim)
        return rows.float().t() * 2

class Short(nn.Module):
    # it fails by its own conversion, though the fake result before it is wrong, too

    def forward(self, x):
        rows = torch.unique_consecutive(x, dim=-1)
        return x * int(x.sum())

def unique(): return Unique(-1), (torch.randint(0, 3, (2, 9)),)
def right(): return Unique(1), (torch.randint(0, 3, (2, 9)),)
def short(): return Short(), (torch.randint(0, 3, (2, 9)),)

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


def test_a_wrong_fake_result_of_torchs_operator_is_told_where_a_later_line_fails(path: Path) -> None:
    report = scan_file(path, factory="unique")
    (finding,) = report.findings
    assert finding.kind == FailureKind.WRONG_FAKE_KERNEL
    assert finding.wrong_fake is not None
    assert finding.wrong_fake.frame is not None
    assert finding.wrong_fake.frame.source.startswith("rows = torch.unique_consecutive")
    assert finding.line == finding.wrong_fake.frame.line + 1
    assert finding.wrong_fake.said == "4 dimensions, where the operator gives 2"
    assert finding.wrong_fake.instead == "dim=1"
    assert "torch's fake kernel of aten.unique_consecutive.default, called at" in why(finding)
    assert next_step(finding) == "Write dim=1, with which it gives the right shape. A report of it belongs to PyTorch."
    assert "custom" not in _told(finding, report)
    assert scan_file(path, factory="right").parts[0].verdict == "passes"


def test_a_failure_that_has_a_cause_of_its_own_is_not_told_by_a_wrong_fake_result(path: Path) -> None:
    (finding,) = scan_file(path, factory="short").findings
    assert finding.kind == FailureKind.DATA_DEPENDENT_VALUE
    assert "fake kernel" not in why(finding)


def test_a_custom_operator_still_needs_a_fake_kernel(path: Path) -> None:
    report = scan_file(path, factory="custom")
    (finding,) = report.findings
    assert finding.dimensions == ()
    assert "has no fake kernel" in why(finding)
    assert next_step(finding) == "Register a fake kernel with torch.library.register_fake."
    assert "@smooth.register_fake" in _told(finding, report)
    assert "index_add_" not in _told(finding, report)

"""A violated guard is blamed on the submodule whose forward made it, and not on the root, whose call torch refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from exportdoctor.report import render
from exportdoctor.report.wording.findings import next_step
from scanning import scan_file

pytestmark = pytest.mark.slow

FEW_ROWS = 16


def is_long(rows: torch.Tensor) -> bool:
    return rows.shape[1] > FEW_ROWS


class Branch(nn.Module):
    """Its guard bounds a size that the root declares without that bound."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if is_long(x) else x + 1


class InChild(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = Branch()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.first(x))


class InOwnCode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return x * 2 if is_long(x) else x + 1


class InLibrary(nn.Module):
    """The only line of the user's is the call of a module of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.recurrence(x)[0] + 1
        return found


class BehindConvolutions(nn.Module):
    """A convolution asks for the sizes before the recurrence fixes one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.shrink = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 2))
        self.recurrence = nn.LSTM(8, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.recurrence(self.shrink(x).mean(2).permute(0, 2, 1))[0]
        return found


def example_of(model: nn.Module) -> tuple[Any, ...]:
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=64)}
    return model.eval(), (torch.randn(2, 7, 4),), {}, {"x": sizes}


def in_child() -> tuple[object, ...]:
    return example_of(InChild())


def in_own_code() -> tuple[object, ...]:
    return example_of(InOwnCode())


def in_library() -> tuple[object, ...]:
    return example_of(InLibrary())


def behind_convolutions() -> tuple[object, ...]:
    sizes = {0: torch.export.Dim("batch"), 3: torch.export.Dim("width", min=6)}
    return BehindConvolutions().eval(), (torch.randn(2, 1, 8, 20),), {}, {"x": sizes}


@pytest.mark.long
@pytest.mark.parametrize(
    ("factory", "root", "blamed"),
    [
        ("behind_convolutions", "fails_child", "recurrence"),
        ("in_child", "fails_child", "inner"),
        ("in_own_code", "fails_own", ""),
        ("in_library", "fails_child", "recurrence"),
    ],
)
def test_the_module_is_the_one_that_made_the_guard(factory: str, root: str, blamed: str) -> None:
    report = scan_file(Path(__file__), factory=factory)
    assert report.parts[0].modules[0].status == root
    assert [finding.module for finding in report.findings] == [blamed]


@pytest.mark.long
def test_what_makes_the_guard_and_exports_by_itself_is_said_to() -> None:
    """As torch says: alone, with a dynamic size, it exports, and its size is narrowed."""
    _, (x,), _, _ = example_of(Branch())
    program = torch.export.export(Branch(), (x,), dynamic_shapes={"x": {1: torch.export.Dim.DYNAMIC}})
    (bounds,) = program.range_constraints.values()
    assert bounds.upper == FEW_ROWS
    report = scan_file(Path(__file__), factory="in_child")
    statuses = {module.fqn: module.status for module in report.parts[0].modules}
    assert statuses["inner"] == "pass"
    text = " ".join(render(report, "text").split())
    assert "inner makes the guard that (root) violates; on its own it exports" in text
    assert "(root) fails in a child F1" in text
    assert "in the call itself" not in text


class Near(nn.Module):
    def __init__(self, mode: str = "use_mm_for_euclid_dist_if_necessary") -> None:
        super().__init__()
        self.mode = mode

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return torch.cdist(points, points, compute_mode=self.mode)


def near() -> tuple[object, ...]:
    return Near().eval(), (torch.randn(2, 20, 3),), {}, {"points": {1: torch.export.Dim("count")}}


@pytest.mark.long
def test_what_cdist_compares_is_told_with_what_helps_and_attentions_issue_is_not() -> None:
    report = scan_file(Path(__file__), factory="near")
    (finding,) = report.findings
    assert "documented limit" not in render(report, "text")
    assert [issue.id for issue in finding.known_issues] == ["cdist-more-than-25-points"]
    assert "donot_use_mm_for_euclid_dist" in next_step(finding)
    (branch,) = scan_file(Path(__file__), factory="in_own_code").findings
    assert not branch.known_issues


@pytest.mark.parametrize(
    ("mode", "count", "bounds"),
    [
        ("donot_use_mm_for_euclid_dist", 20, {}),
        ("use_mm_for_euclid_dist", 20, {}),
        ("use_mm_for_euclid_dist_if_necessary", 20, {"max": 25}),
        ("use_mm_for_euclid_dist_if_necessary", 30, {"min": 26}),
    ],
)
def test_what_is_advised_on_cdist_exports(mode: str, count: int, bounds: dict[str, int]) -> None:
    size = torch.export.Dim("count", **bounds)
    torch.export.export(Near(mode), (torch.randn(2, count, 3),), dynamic_shapes={"points": {1: size}})

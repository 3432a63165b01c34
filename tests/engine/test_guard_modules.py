"""A violated guard is blamed on the submodule whose forward made it, and not on the root, whose call torch refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from exportdoctor.report import render
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


def example_of(model: nn.Module) -> tuple[object, ...]:
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=64)}
    return model.eval(), (torch.randn(2, 7, 4),), {}, {"x": sizes}


def in_child() -> tuple[object, ...]:
    return example_of(InChild())


def in_own_code() -> tuple[object, ...]:
    return example_of(InOwnCode())


def in_library() -> tuple[object, ...]:
    return example_of(InLibrary())


@pytest.mark.parametrize(
    ("factory", "root", "blamed"),
    [
        ("in_child", "fails_child", "inner"),
        ("in_own_code", "fails_own", ""),
        ("in_library", "fails_child", "recurrence"),
    ],
)
def test_the_module_is_the_one_that_made_the_guard(factory: str, root: str, blamed: str) -> None:
    report = scan_file(Path(__file__), factory=factory)
    assert report.parts[0].modules[0].status == root
    assert {finding.module for finding in report.findings} == {blamed}


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

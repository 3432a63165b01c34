"""Scans whose dynamic_shapes name the right tensors in another structure than that of the inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.report.wording import next_step
from scanning import scan_file

TARGET = """
from collections import namedtuple
from dataclasses import dataclass
import torch
from torch import nn, ones
from torch.export import Dim

D = Dim("rows")
Two = namedtuple("Two", "left right")

@dataclass
class Batch:
    left: torch.Tensor
    right: torch.Tensor

class Adds(nn.Module):
    def forward(self, x, y=None):
        x = x if isinstance(x, torch.Tensor) else x.left + x.right.sum()
        return x + 1 if y is None else x + y[0] + y[1]

def build():
    return dict(module=Adds(), {given})
"""
CURED = {
    "a tuple for a list": (
        "args=(ones(3, 2), [ones(3, 2), ones(1, 2)]), dynamic_shapes=({0: D}, ({0: D}, None))",
        "{'x': {0: Dim(\"rows\")}, 'y': [{0: Dim(\"rows\")}, None]}",
    ),
    "sizes of None": (
        'args=(ones(3, 2), None), dynamic_shapes={"x": {0: D}, "y": {0: D}}',
        "{'x': {0: Dim(\"rows\")}, 'y': None}",
    ),
    "a tuple for a named tuple": (
        "args=(Two(ones(3, 2), ones(4)),), dynamic_shapes=(({0: D}, None),)",
        "{'x': Two({0: Dim(\"rows\")}, None)}",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("given", "shapes"), CURED.values(), ids=list(CURED))
def test_the_shapes_that_torch_takes_are_told_and_cure_it(given: str, shapes: str, tmp_path: Path) -> None:
    path = tmp_path / "adds.py"
    path.write_text(TARGET.replace("{given}", given))
    report = scan_file(path, cure=True)
    (finding,) = report.findings
    assert finding.kind is FailureKind.INVALID_DYNAMIC_SHAPES
    assert next_step(finding) == f"Give `dynamic_shapes={shapes}`."
    (part,) = report.parts
    assert part.title == "rows dynamic"
    assert part.prescription is not None
    assert (part.prescription.shims, part.prescription.soundness) == (("shapes-as-inputs",), "exact")


@pytest.mark.long
def test_a_dict_of_the_fields_of_a_dataclass_is_fitted_once_the_class_is_registered(tmp_path: Path) -> None:
    path = tmp_path / "adds.py"
    given = 'args=(Batch(ones(3, 2), ones(4)),), dynamic_shapes={"x": {"left": {0: D}}}'
    path.write_text(TARGET.replace("{given}", given))
    report = scan_file(path, cure=True)
    kinds = [finding.kind for finding in report.findings]
    assert kinds == [FailureKind.UNREGISTERED_PYTREE, FailureKind.INVALID_DYNAMIC_SHAPES]
    assert "{'x': [{0: Dim(\"rows\")}, None]}" in next_step(report.findings[1])
    (part,) = report.parts
    assert part.prescription is not None
    assert part.prescription.soundness == "exact"
    assert set(part.prescription.shims) == {"shapes-as-inputs", "register-dataclass-pytree"}

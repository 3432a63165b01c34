"""Python's max and min of tensors are told, for torch.export traces functions that treat NaN otherwise."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from exportdoctor.worker.prove.python_extremes import note_extremes

MODULE = """\
import torch
from torch import nn
{imports}

class Net(nn.Module):
    def forward(self, x):
        peak = x[0].abs().sum()
        for row in x[1:]:
            peak = {call}
        return x / peak


def build():
    return Net()
"""


def export(folder: Path, call: str, imports: str = "", dtype: torch.dtype = torch.float32) -> tuple[Any, Any, Any]:
    """A module that makes this call, its program, and inputs."""
    file = folder / "net.py"
    file.write_text(MODULE.format(call=call, imports=imports))
    module, inputs = runpy.run_path(str(file))["build"](), torch.arange(12).reshape(3, 4).to(dtype)
    return module, torch.export.export(module, (inputs,)), inputs


@pytest.mark.parametrize(
    "call",
    [
        "max(peak, row.abs().max())",
        "min(peak, row.sum())",
        "max(0.5, row.sum())",
        "max(\n                peak, row[0])",
    ],
)
def test_a_program_that_passes_a_nan_on_where_eager_does_not_is_told_with_the_line(tmp_path: Path, call: str) -> None:
    module, program, x = export(tmp_path, call)
    x[2] = float("nan")
    assert not torch.isnan(module(x)).all()
    assert torch.isnan(program.module()(x)).all()
    assert note_extremes(program).startswith("at net.py:9 ")


@pytest.mark.parametrize(
    ("call", "factor", "differs"),
    [
        ("max(row.sum(), 1)", -1, True),
        ("max(row.sum(), 1.0)", -1, False),
        ("max(peak, row.long().sum())", 1, True),
        ("min(peak, row.sum())", 1, False),
    ],
)
def test_another_dtype_than_that_of_what_python_takes_is_told(
    tmp_path: Path, call: str, factor: int, differs: bool
) -> None:
    """The program of `max(x, 1)` gave floats where eager gives whole numbers, and a scan said nothing of it."""
    module, program, x = export(tmp_path, f"({call}); self.seen = peak")
    assert ("common dtype" in note_extremes(program)) == differs
    module(factor * x)
    dtype = getattr(module.seen, "dtype", type(module.seen))
    assert (dtype not in (torch.float32, float)) == differs


@pytest.mark.parametrize(
    ("call", "imports"),
    [
        ("torch.maximum(peak, row.max())", ""),
        ("peak.clamp(min=0.5)", ""),
        ("peak + max(row.shape[0], 2)", ""),
        ("peak + row.max()", ""),
    ],
)
def test_other_calls_are_not_told(tmp_path: Path, call: str, imports: str) -> None:
    _, program, _ = export(tmp_path, call, imports)
    assert note_extremes(program) == ""


def test_a_function_of_the_models_own_by_that_name_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_extremes.py").write_text(
        MODULE.format(call="max(peak, row.max())", imports="from torch import max")
    )
    import own_extremes  # type: ignore[import-not-found]

    assert note_extremes(torch.export.export(own_extremes.build(), (torch.ones(3, 4),))) == ""


def test_whole_numbers_have_no_nan(tmp_path: Path) -> None:
    _, program, _ = export(tmp_path, "max(peak, row.max())", dtype=torch.int64)
    assert note_extremes(program) == ""

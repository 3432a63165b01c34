"""check-as-assertion finds checks that stand in another file, and computes the sides of `and` and `or` where it may."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import exportdoctor.shims as sh
from exportdoctor.shims import ExportCall

ROWS = torch.arange(6.0).reshape(2, 3)


class Either(torch.nn.Module):
    """Checks whose later sides are for rows that the first one lets through; where it does not, they raise anyway."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        if self.way == "either":
            if (places >= 3).any() or x[:, places].min() < 0:
                raise ValueError("outside, or negative")
        elif self.way == "not both":
            if not ((places < 3).all() and x[:, places].min() >= 0):
                raise ValueError("outside, or negative")
        elif self.way == "asserted":
            assert (places < 3).all() and x[:, places].min() >= 0  # noqa: PT018
        elif ((places < 3).all() and x[:, places].min() < 0) or x.sum() > 99:
            raise ValueError("negative, or too much")
        return x[:, places.clamp(0, 2)] + places.sum()


def _refuses(module: Any, x: torch.Tensor, places: torch.Tensor) -> bool:
    try:
        module(x, places)
    except Exception:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("way", ["either", "not both", "asserted"])
def test_a_side_that_is_left_out_only_where_the_check_raises_is_computed(way: str) -> None:
    """As `torch.min(x) < left or torch.max(x) > right` in splines, which was refused for rows that are empty."""
    module, places = Either(way), torch.tensor([0, 1])
    with sh.apply_shims([sh.find("check-as-assertion")], ExportCall(module=module, args=(ROWS, places))) as treated:
        program = sh.export_program(treated).module()
    assert torch.equal(program(ROWS + 1, places), module(ROWS + 1, places))
    for x, others, refused in [
        (ROWS, [7, 0], True),
        (-ROWS, [0, 1], True),
        (-ROWS, [0, 0], True),
        (ROWS, [2, 2], False),
    ]:
        given_places = torch.tensor(others)
        assert _refuses(module, x, given_places) == _refuses(program, x, given_places) == refused


def test_a_side_that_decides_nothing_alone_is_not_computed_unasked() -> None:
    call = ExportCall(module=Either("nested"), args=(ROWS, torch.tensor([0, 1])))
    with (
        pytest.raises(Exception, match="data-dependent"),
        sh.apply_shims([sh.find("check-as-assertion")], call) as treated,
    ):
        sh.export_program(treated)


FAR_CHECK = """
def outer(x):
    return inner(x) * 2

def inner(x):
    if x.min() < 0:
        raise ValueError("negative")
    return x
"""
FAR_MODEL = """
import torch
{imported}
class Model(torch.nn.Module):
    def forward(self, x):
        return {called}(x)
"""


@pytest.mark.parametrize(
    ("imported", "called"), [("from far_check import outer", "outer"), ("import far_check", "far_check.outer")]
)
def test_a_check_that_a_function_of_another_file_calls_is_asserted(
    imported: str, called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("far_check", "far_model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "far_check.py").write_text(FAR_CHECK)
    (tmp_path / "far_model.py").write_text(FAR_MODEL.format(imported=imported, called=called))
    model = importlib.import_module("far_model").Model()
    with sh.apply_shims([sh.find("check-as-assertion")], ExportCall(module=model, args=(ROWS,))) as call:
        program = sh.export_program(call).module()
    assert torch.equal(program(ROWS), ROWS * 2)
    with pytest.raises(RuntimeError, match="a check of the inputs failed"):
        program(ROWS - 1)

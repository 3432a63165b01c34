"""Ranges from `torch.arange` are torch's own, and their number of values stays dynamic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.shims.own.ranges import fftfreq, linspace, logspace, rfftfreq

DTYPES = (None, torch.float32, torch.float64, torch.bfloat16, torch.float16)


@settings(deadline=None)
@given(st.floats(-100, 100), st.floats(-100, 100), st.integers(0, 70), st.sampled_from(DTYPES), st.booleans())
def test_they_are_what_torch_makes(start: float, end: float, count: int, dtype: Any, tensors: bool) -> None:
    ends: tuple[Any, Any] = (torch.tensor(start), torch.tensor(end)) if tensors else (start, end)
    noise = torch.finfo(dtype or torch.float32).eps
    # torch rounds the step to the dtype, and adds it up to the middle
    allowed: dict[str, Any] = {"rtol": 0, "atol": 4 * noise * (abs(start) + abs(end))}
    plain: Any = torch.linspace
    own = linspace(ends[0], ends[1], count, dtype=dtype)
    torch.testing.assert_close(own, plain(*ends, count, dtype=dtype), **allowed)
    low, high = start / 50, end / 50
    allowed = {"rtol": 16 * noise, "atol": 0}
    own = logspace(low, high, count, 2.5, dtype=dtype)
    torch.testing.assert_close(own, torch.logspace(low, high, count, 2.5, dtype=dtype), **allowed)
    if count:
        for mine, torchs in ((fftfreq, torch.fft.fftfreq), (rfftfreq, torch.fft.rfftfreq)):
            torch.testing.assert_close(mine(count, 0.5, dtype=dtype), torchs(count, 0.5, dtype=dtype))


def test_their_last_digits_may_differ_so_they_are_torchs_under_a_condition() -> None:
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    sizes = [(low, count, dtype) for low in range(-5, 2) for count in (7, 40, 152) for dtype in dtypes]
    apart = [
        (low, count, dtype)
        for low, count, dtype in sizes
        if not torch.equal(linspace(low, 3, count, dtype=dtype), torch.linspace(low, 3, count, dtype=dtype))
    ]
    shim = find("ranges-by-arange")
    assert apart
    assert shim.soundness == "precondition"
    assert "round" in shim.precondition


class Ranges(nn.Module):
    def forward(self, x: Tensor) -> Any:
        size = x.shape[0]
        fixed = torch.linspace(0, 1, 3), torch.linspace(0, 9, 4, dtype=torch.int64)
        grid = torch.linspace(-1.0, end=size - 1, steps=size, device=x.device), torch.logspace(0, 1, steps=2 * size)
        return *fixed, *grid, torch.fft.fftfreq(size), torch.fft.rfftfreq(size, d=0.25), x + 1


@pytest.mark.parametrize("dynamic", [True, False])
def test_the_number_of_values_stays_dynamic(dynamic: bool) -> None:
    shapes = ({0: Dim("size", min=1)},) if dynamic else None
    call = ExportCall(module=Ranges(), args=(torch.randn(5, 2),), dynamic_shapes=shapes)
    plain = torch.linspace
    with apply_shims([find("ranges-by-arange")], call) as changed:
        program = export_program(changed).module()
    assert torch.linspace is plain
    for size in (1, 2, 6, 17) if dynamic else (5,):
        x = torch.randn(size, 2)
        torch.testing.assert_close(program(x), Ranges()(x))

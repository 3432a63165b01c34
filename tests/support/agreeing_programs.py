"""Programs made with the shim `branch-as-where` beside eager, on inputs that take one arm or the other."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find


def chosen_program(module: Any, rows: int = 3, least: int | None = None) -> Any:
    """The module's program, of rows of four values."""
    size = Dim("n", min=least) if least else Dim.DYNAMIC
    call = ExportCall(module=copy.deepcopy(module), args=(torch.randn(rows, 4),), dynamic_shapes=({0: size},))
    with torch.no_grad(), apply_shims([find("branch-as-where")], call) as given:
        return export_program(given).module()


def drawn_rows(seed: int, least: int = 2) -> Tensor:
    """Some rows of four values, more of them negative or positive, seldom with NaN or of one value."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(least + seed % 3, 4, generator=generator) * (1 + seed % 2) + (seed % 5 - 2) * 0.7
    if seed % 7 == 3:
        rows[0, seed % 4] = float("nan")
    return torch.full_like(rows, -1.0) if seed % 11 == 5 else rows


def assert_agrees(program: Any, module: Any, inputs: Sequence[Tensor]) -> None:
    """Whatever the input, the program gives what eager gives, and raises where eager does."""
    with torch.no_grad():
        for x in inputs:
            try:
                wanted = module(x.clone())
            except (RuntimeError, IndexError):
                wanted = None
            try:
                found = program(x.clone())
            except (RuntimeError, IndexError):
                found = None
            assert (found is None) == (wanted is None), x
            if wanted is not None:
                torch.testing.assert_close(found, wanted, equal_nan=True)

"""Functions with a cache are called past it where a size is symbolic, and as before otherwise."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find

CALLS: list[int] = []


@functools.lru_cache(maxsize=4)
def halves(rows: int) -> Tensor:
    CALLS.append(rows)
    return torch.arange(rows, dtype=torch.float32) / 2


class Placing(nn.Module):
    """By a function, a method, a static method and a class method, and once with a number of Python's."""

    @functools.cache  # noqa: B019
    def grid(self, rows: int, columns: int = 1) -> Tensor:
        return torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)

    @staticmethod
    @functools.lru_cache
    def scale(rows: int) -> float:
        return rows * 0.5

    @classmethod
    @functools.lru_cache
    def shift(cls, *, rows: int) -> float:
        return rows - 1.0

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape
        placed = x + self.grid(rows, columns=columns) * self.scale(rows) - self.shift(rows=rows)
        return placed + halves(rows)[:, None] + halves(3).sum()


def test_calls_with_a_symbol_go_past_the_cache_and_others_do_not() -> None:
    call = ExportCall(module=Placing(), args=(torch.randn(5, 3),), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},))
    before = {name: vars(Placing)[name] for name in ("grid", "scale", "shift")}
    CALLS.clear()
    halves.cache_clear()
    with apply_shims([find("past-lru-cache")], call) as given:
        program = export_program(given).module()
        assert CALLS.count(3) == halves.cache_info().currsize == 1
    assert halves.cache_info().currsize == 0, "it kept a tensor of the trace"
    assert {name: vars(Placing)[name] for name in before} == before
    for rows, columns in ((5, 3), (2, 4), (9, 2)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(program(x), Placing()(x))


def test_what_a_module_imported_from_another_is_found_too() -> None:
    here: Any = sys.modules[__name__]
    call = ExportCall(module=Placing(), args=(torch.randn(5, 3),))
    with apply_shims([find("past-lru-cache")], call):
        assert here.halves is not halves.__wrapped__
        assert here.halves(4).tolist() == [0.0, 0.5, 1.0, 1.5]
        here.halves.cache_clear()
    assert isinstance(here.halves, functools._lru_cache_wrapper)

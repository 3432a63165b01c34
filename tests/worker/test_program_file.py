"""What torch can save and load of a program is known before a file is asked for."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.worker.export.program_file import why_unloadable


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Cached(nn.Module):
    def forward(self, x: Tensor, past_key_values: DynamicCache) -> Tensor:
        keys = past_key_values.layers[0].keys  # type: ignore[union-attr]
        return x + cast(Tensor, keys).sum()


class Pooled(nn.Module):
    def forward(self, x: Tensor, groups: Tensor) -> Tensor:
        count = int(groups.max()) + 1
        total = x.new_zeros(count, x.shape[1]).index_add_(0, groups, x)
        return total / torch.bincount(groups, minlength=count)[:, None]


def test_a_plain_program_and_one_with_a_cache_can_be_loaded() -> None:
    assert why_unloadable(torch.export.export(Scaled(), (torch.ones(3),))) == ""
    cache = DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)
    call = ExportCall(module=Cached(), args=(torch.ones(3), cache))
    with apply_shims([find("register-cache-pytree")], call) as given:
        assert why_unloadable(export_program(given)) == ""


def test_what_torch_refuses_is_told() -> None:
    """torch 2.13 does not load a program in which a size of an input has an unbacked symbol."""
    rows = {0: torch.export.Dim("rows")}
    args = (torch.ones(6, 2), torch.tensor([0, 1, 2, 0, 1, 2]))
    call = ExportCall(module=Pooled(), args=args, dynamic_shapes=({**rows}, {**rows}))
    with apply_shims([find("hoist-numbers")], call) as given:
        assert "unbacked symbols" in why_unloadable(export_program(given))

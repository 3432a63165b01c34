"""What torch can save and load of a program is known before a file is asked for."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.worker.export.program_file import why_unloadable
from exportdoctor.worker.translate.onnx_program import drop_assertions, output_names


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


class Sparse(nn.Module):
    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.register_buffer("heads", torch.eye(3).to_sparse(layout=layout), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


@pytest.mark.parametrize(
    ("layout", "reason"),
    [(torch.sparse_coo, "Cannot access storage of SparseTensorImpl"), (torch.sparse_csr, "do not have is_contiguous")],
)
def test_why_a_sparse_buffer_has_no_file_is_told_by_torch(layout: torch.layout, reason: str) -> None:
    """`nbytes` raises for a sparse tensor, and so did the question, so that the numbers were not compared."""
    assert reason in why_unloadable(torch.export.export(Sparse(layout), (torch.ones(3),)))


def test_what_torch_refuses_is_told() -> None:
    """torch 2.13 does not load a program in which a size of an input has an unbacked symbol."""
    rows = {0: torch.export.Dim("rows")}
    args = (torch.ones(6, 2), torch.tensor([0, 1, 2, 0, 1, 2]))
    call = ExportCall(module=Pooled(), args=args, dynamic_shapes=({**rows}, {**rows}))
    with apply_shims([find("hoist-numbers")], call) as given:
        assert "unbacked symbols" in why_unloadable(export_program(given))


class Named(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return x * 2, "done"


def test_what_torch_logs_when_it_cannot_load_a_file_is_the_reason() -> None:
    why = why_unloadable(torch.export.export(Named(), (torch.ones(3),)))
    assert why == "SerializeError: Unable to deserialize output node Argument(as_string=done)"


class Found(nn.Module):
    def forward(self, x: Tensor, count: Tensor) -> tuple[Tensor, Tensor, int]:
        size = count.item()
        torch._check(size >= 2)  # type: ignore[arg-type]
        return x[x > 0], x.new_zeros(size), x.shape[0]  # type: ignore[arg-type]


def test_an_assertion_that_always_holds_is_no_condition_of_a_file() -> None:
    shapes = ({0: torch.export.Dim.DYNAMIC}, None)
    program = torch.export.export(Found(), (torch.ones(3), torch.tensor(4)), dynamic_shapes=shapes)
    assert output_names(program) == ["output_0", "output_1", "output_2"]
    (said,) = drop_assertions(program)
    assert said.startswith("u0 >= 2 for the value at ")

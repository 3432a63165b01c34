"""What a program asserts about sizes is known without running it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.torch_internals.program_checks import (
    ASSERTION,
    asserted_text,
    assertions_of,
    size_assertions,
    violated_assertions,
)


class Chunked(nn.Module):
    """Pads to a multiple of the chunk, as state-space models do; says nothing of one that is full."""

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        pad = (4 - length % 4) % 4
        if pad > 0:
            x = nn.functional.pad(x, (0, pad))
        return x.reshape(x.shape[0], -1, 4).cumsum(2).reshape(x.shape[0], -1)[:, :length]


class Bounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] * x.shape[1] < 60 else x * 3


class Counted(nn.Module):
    """Asserts something of a value, and nothing of sizes."""

    def forward(self, x: Tensor) -> Tensor:
        count = x.to(torch.int64).sum().item()
        torch._check(count < 1000)  # type: ignore[no-untyped-call]
        return x * count


def _export(module: nn.Module, x: Tensor) -> Any:
    shapes = ({0: Dim("rows"), 1: Dim("length")},)
    return torch.export.export(module, (x,), dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True)


@pytest.mark.parametrize("module", [Chunked(), Bounded()], ids=lambda one: type(one).__name__)
def test_what_is_said_to_be_violated_is_what_the_program_raises(module: nn.Module) -> None:
    program = _export(module, torch.ones(2, 13))
    nodes, ready = size_assertions(program), program.module()
    ends = set()
    for rows, length in ((rows, length) for rows in (2, 3, 7) for length in range(2, 35)):
        x = torch.rand(rows, length)
        said = next(map(asserted_text, violated_assertions(nodes, [x])), "")
        try:
            raised, answer = "", ready(x)
            assert torch.equal(answer, module(x))
        except RuntimeError as error:
            found = ASSERTION.search(str(error))
            assert found is not None
            raised = found[1]
        assert said == raised, (rows, length)
        ends.add(said)
    assert "" in ends
    assert len(ends) > 1


def test_a_program_that_asserts_nothing_of_sizes_has_no_such_nodes() -> None:
    program = _export(Counted(), torch.ones(2, 3))
    assert assertions_of(program)
    assert not size_assertions(program)
    assert not size_assertions(_export(nn.ReLU(), torch.ones(2, 3)))

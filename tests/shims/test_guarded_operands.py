"""`f.shape[0] > 0 and f.max() > 2`: Python does not compute the second side where nothing was found."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from agreeing_programs import assert_agrees, chosen_program, drawn_rows
from written_modules import net_with_forward

HEAD = "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
CONDITIONS = {
    "the greatest": "f.shape[0] > 0 and f.max() > 1",
    "the least, or": "f.shape[0] == 0 or f.min() < 0.2",
    "length and number": "len(f) and f.amax().item() > 1",
    "three": "x.sum() > 0 and f.numel() > 0 and f.amin() > -1",
    "a row": "f.shape[0] > 0 and f[0, 1] > 0",
    "the last row, and another": "f.size(0) > 1 and (f[-1].sum() > 0 or f[1, 0] > 1)",
    "of whole numbers": "f.shape[0] > 0 and (f * 3).to(torch.int32).min() < -1",
    "of truths": "f.shape[0] > 0 and (f > 1).max()",
    "not guarded": "x.sum() > 1 and f.max() > 1",
    "guarded too late": "f.max() > 1 and f.shape[0] > 0",
    "guarded by too few": "f.shape[0] > 0 and f[1, 0] > 0",
    "in brackets": "x.amax() > 1 and (f.shape[0] == 0 or f.max() > 2)",
    "negated": "not (f.shape[0] == 0 or f.max() < 1)",
}


def module_of(condition: str, folder: Path) -> Any:
    body = f"f = x[x[:, 0] > 0.5]\nif {condition}: x = x * 2\nreturn x"
    return net_with_forward(HEAD, body, folder)


@pytest.mark.slow
@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS.keys())
def test_the_program_gives_or_refuses_what_eager_does(condition: str, tmp_path: Path) -> None:
    module = module_of(condition, tmp_path)
    inputs = [drawn_rows(seed) for seed in range(20)]
    nan = torch.ones(3, 4)
    nan[1, 2] = float("nan")
    inputs += [nan, torch.full((2, 4), float("inf")), torch.tensor([[1.0, float("-inf"), 0, 0]]), -torch.ones(1, 4)]
    assert_agrees(chosen_program(module), module, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_drawn_conditions_agree_with_eager(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    parts = ("f.shape[0] > 0", "f.shape[0] == 0", "f.max() > 1", "f.amin() < 0", "f[0, 2] > 0", "x.sum() > 0")

    def condition(depth: int) -> str:
        if depth == 0:
            return draw.choice(parts)
        return f"({condition(depth - 1)} {draw.choice(('and', 'or'))} {condition(draw.randrange(depth))})"

    module = module_of(condition(2), tmp_path)
    assert_agrees(chosen_program(module), module, [drawn_rows(one) for one in range(20)])

"""Modules that find rows by a mask and ask a condition on what they found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def module_of(condition: str, body: str, folder: Path) -> nn.Module:
    """A module of that body, with the condition for `{}`. The body has `x`, `mask`, `rows`, `y` and `self.proj`."""
    source = (
        "import torch\nfrom torch import nn\n\n\nclass Found(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.proj = nn.Linear(2, 2)\n\n    def forward(self, x, mask):\n"
        f"        rows, y = torch.nonzero(mask).squeeze(-1), x * 3\n        {body.format(condition)}\n"
    )
    file = folder / "found.py"
    file.write_text(source)
    names: dict[str, Any] = {"__name__": "found"}
    exec(compile(source, str(file), "exec"), names)
    module: nn.Module = names["Found"]()
    return module.eval()


def inputs_of(found: list[int]) -> tuple[Tensor, Tensor]:
    """Four rows of two numbers, and a mask of those that are found."""
    mask = torch.zeros(4, dtype=torch.bool)
    mask[found] = True
    return torch.arange(8.0).reshape(4, 2) + 1, mask

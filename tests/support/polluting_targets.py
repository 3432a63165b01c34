"""Targets that change torch for everybody: whatever an attempt leaves behind would change the next one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.LayerNorm(3))


def memo() -> tuple[nn.Module, tuple[Tensor]]:
    """Every Linear adds what the first one saw, whoever called it."""
    seen: dict[str, Any] = {}
    plain = nn.Linear.forward

    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        found = plain(self, x)
        return found + seen.setdefault("sum", x.sum()) if "sum" in seen else seen.update(sum=x.sum()) or found

    nn.Linear.forward = forward  # type: ignore[method-assign, assignment]
    return _layers(), (torch.randn(2, 3),)


def hook() -> tuple[nn.Module, tuple[Tensor]]:
    """A hook on all modules that wants an attribute of each."""
    model = _layers()
    for module in model.modules():
        module.tag = 1  # type: ignore[assignment]

    def read_tag(module: Any, args: Any) -> None:
        module.tag + 1

    nn.modules.module.register_module_forward_pre_hook(read_tag)
    return model, (torch.randn(2, 3),)


def scaled() -> tuple[nn.Module, tuple[Tensor]]:
    """Every Linear needs an attribute that only those of the model have."""
    model, plain = _layers(), nn.Linear.forward
    for module in model.modules():
        module.scaling = 2.0  # type: ignore[assignment]

    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        scaling: Any = self.scaling
        found: Tensor = plain(self, x) * scaling
        return found

    nn.Linear.forward = forward  # type: ignore[method-assign, assignment]
    return model, (torch.randn(2, 3),)

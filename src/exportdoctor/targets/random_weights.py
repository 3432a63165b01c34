"""The only place that fills a model with random weights: seeded, and cheaper than its own initialiser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exportdoctor.targets.fake_weights import replace_parameters

if TYPE_CHECKING:
    import torch
    from torch import nn

SEED = 20250201
_SPREAD = 0.02


def random_parameters(model: nn.Module, *, device: torch.device) -> None:
    """Give each meta parameter values on the device, normally distributed with standard deviation 0.02.

    Vectors called `weight`, the scales of norms, lie about one, all else about zero.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(SEED)

    def draw(name: str, parameter: nn.Parameter) -> torch.Tensor:
        values = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        is_scale = parameter.dim() == 1 and name.endswith("weight")
        return values.normal_(1.0 if is_scale else 0.0, _SPREAD, generator=generator)

    replace_parameters(model, draw)
    model.to(device)

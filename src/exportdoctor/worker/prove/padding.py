"""The only place that pads a batch: what a mask leaves out, eager and the program must leave out alike."""

from __future__ import annotations

import copy

import torch

from exportdoctor.targets.built import Inputs

_MASK, _IDS = "attention_mask", "input_ids"


def padded(inputs: Inputs) -> Inputs | None:
    """The first sequence of a batch with some padding: behind its tokens, or before the cached ones.

    A row of attention that sees nothing at all would be undefined, so there is no padding before a prompt.
    """
    args, kwargs = inputs
    mask, ids = kwargs.get(_MASK), kwargs.get(_IDS)
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or not isinstance(ids, torch.Tensor):
        return None
    count = min(3, mask.shape[1] // 3)
    if count < 1 or mask.dtype.is_floating_point:
        return None
    holes = mask.clone()
    if ids.shape == mask.shape:
        holes[0, -count:] = 0
    else:
        holes[0, :count] = 0
    return args, {**copy.copy(kwargs), _MASK: holes}


def padding_in(inputs: Inputs) -> int:
    """How many tokens the attention mask of these inputs leaves out."""
    mask = inputs[1].get(_MASK)
    return int((mask == 0).sum()) if isinstance(mask, torch.Tensor) and mask.dim() == 2 else 0

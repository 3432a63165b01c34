"""One call on which a program is compared with eager: its inputs, what eager gave for them, and its title."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from exportdoctor.targets.built import Inputs
from exportdoctor.worker.prove.compare_outputs import tensors_in


@dataclass(frozen=True, kw_only=True)
class InputSet:
    """`outputs` are eager's, of each of so many calls one after the other; at least one.

    `same` = it has the example's sizes. `made_up`: whole numbers were changed; a program may refuse such inputs, but
    not answer them wrongly.
    """

    title: str
    inputs: Inputs
    outputs: tuple[Any, ...]
    same: bool = False
    made_up: bool = False

    @property
    def wanted(self) -> list[torch.Tensor]:
        """The tensors of eager's first output. Read it while the shims are active: one may register its class."""
        return tensors_in(self.outputs[0])


_MASK, _IDS = "attention_mask", "input_ids"


def pad_batch(inputs: Inputs) -> Inputs | None:
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
    return args, {**kwargs, _MASK: holes}


def padding_in(inputs: Inputs) -> int:
    """How many tokens the attention mask of these inputs masks."""
    mask = inputs[1].get(_MASK)
    return int((mask == 0).sum()) if isinstance(mask, torch.Tensor) and mask.dim() == 2 else 0

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
        """The tensors of eager's first output. To be asked while the shims hold: one may let torch take it apart."""
        return tensors_in(self.outputs[0])

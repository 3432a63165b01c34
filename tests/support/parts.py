"""A part of a target, built here, and the tensor of its output that numbers are compared on."""

from __future__ import annotations

from typing import Any

import torch

from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.targets import BuiltPart, build, resolve


def part_of(ref: str, name: str, **options: Any) -> BuiltPart:
    return build(resolve(TargetRef(ref=ref, parts=(name,), options=BuildOptions(**options)))).part(name)


def main_tensor(output: Any) -> torch.Tensor:
    found: torch.Tensor = output.logits if getattr(output, "logits", None) is not None else output.pooler_output
    return found

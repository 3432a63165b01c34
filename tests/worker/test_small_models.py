"""The small model on which numbers are compared: images as small as it takes, and a forward that ends soon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from exportdoctor.core.errors import TargetError
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX, Capture, Open
from exportdoctor.core.records.target import TargetRef
from exportdoctor.targets.model.experts import experts_implementation
from exportdoctor.worker.open_target import OpenTarget
from tiny_configs import write_config

MIXTRAL: dict[str, Any] = {"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
PIXTRAL: dict[str, Any] = {"model_type": "pixtral", "image_size": 1024, "patch_size": 16, "num_hidden_layers": 2}
DEPTH_PRO: dict[str, Any] = {"model_type": "depth_pro", "fusion_hidden_size": 512}


def opened(folder: Path, config: dict[str, Any]) -> OpenTarget:
    target = OpenTarget()
    target.open(Open(target=TargetRef(ref=str(write_config(folder, config))), isolation="process"))
    target.capture(Capture(part="default"))
    return target


def pixels(target: OpenTarget, part: str) -> torch.Tensor:
    built = target.parts[part].built
    found: torch.Tensor = built.kwargs["pixel_values"]
    return found


@pytest.mark.long
@pytest.mark.slow
def test_a_model_that_takes_images_of_any_size_is_compared_on_small_ones(tmp_path: Path) -> None:
    """Its attention takes memory and time with the fourth power of their side."""
    target = opened(tmp_path / "pixtral", PIXTRAL)
    assert pixels(target, "default").shape[-2:] == (1024, 1024)
    target.capture(Capture(part="default" + SMALL_MODEL_SUFFIX))
    assert max(pixels(target, "default" + SMALL_MODEL_SUFFIX).shape[-2:]) <= 256


@pytest.mark.long
@pytest.mark.slow
def test_a_small_model_whose_forward_takes_too_long_is_none(tmp_path: Path) -> None:
    """It is refused before anything of it runs."""
    target = opened(tmp_path / "depth_pro", DEPTH_PRO)
    with pytest.raises(
        TargetError, match=r"There is no small model: With few layers its forward still takes [\d,]+ billion"
    ):
        target.capture(Capture(part="default" + SMALL_MODEL_SUFFIX))


@pytest.mark.slow
def test_a_small_model_has_the_experts_implementation_of_the_model(tmp_path: Path) -> None:
    """Here another one than its default, which has no fake kernel for float32. Its failures are others."""
    target = opened(tmp_path / "mixtral", MIXTRAL)
    target.capture(Capture(part="default" + SMALL_MODEL_SUFFIX))
    assert target.built is not None
    small = target.parts["default" + SMALL_MODEL_SUFFIX].built.module
    assert experts_implementation(target.built.model) == "batched_mm"
    assert experts_implementation(small) == "batched_mm"

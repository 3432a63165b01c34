"""The parts of a vision-language model whose images come as patches with a grid.

Read from the signatures of the installed transformers: 4.53 to 5.23 differ in what their forwards take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import NoPartError
from exportdoctor.targets.parts.model_context import ModelContext, assemble, forward_names

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.targets.built import BuiltPart

Grid = tuple[int, int, int]
"""Patches along time, height and width."""

_BATCH, _LENGTH = (2, 3), (13, 22)
_AROUND = ((5, 11), (7, 4))
"""Text tokens before and after the image, for each of the two input sets."""

_SECONDS_PER_GRID = 1.0
_MERGES = ("merge_sizes", "image_merge_sizes")
"""How many patches of each side are merged, one number an image."""
_TOKEN_TYPE = {"image": 1, "video": 2}


@dataclass(frozen=True, kw_only=True)
class VisionInput:
    """How one kind of picture enters the whole model: its name there, its inputs, its frames at two sizes."""

    kind: str
    pixels: str
    grid: str
    frames: tuple[int, int]


IMAGE = VisionInput(kind="image", pixels="pixel_values", grid="image_grid_thw", frames=(1, 1))
VIDEO = VisionInput(kind="video", pixels="pixel_values_videos", grid="video_grid_thw", frames=(2, 3))


def vision_part(subject: ModelContext, *, name: str = "vision") -> BuiltPart:
    """The image encoder alone, which may be the whole model: patches (count, features), their grid (images, 3)."""
    prefix, module = _encoder(subject.model)
    first, second = (_vision_inputs(subject, module, grid) for grid in _grids(subject, IMAGE))
    patches = next(iter(first))
    return assemble(
        name,
        subject,
        module=module,
        prefix=prefix,
        inputs=first,
        other_inputs=second,
        axes={patches: {0: "patches"}},
    )


def text_part(subject: ModelContext) -> BuiltPart:
    """The whole model without an image: `input_ids` and `attention_mask` (batch, sequence) to logits."""
    first, second = (
        _text_inputs(subject, subject.token_ids(batch, length)) for batch, length in zip(_BATCH, _LENGTH, strict=True)
    )
    axes = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask")}
    return assemble("text", subject, inputs=first, other_inputs=second, axes=axes)


def full_part(subject: ModelContext) -> BuiltPart:
    """The whole model with one image in its text."""
    return _whole(subject, IMAGE, name="full")


def video_part(subject: ModelContext) -> BuiltPart:
    """The whole model with one video of a few frames in its text."""
    return _whole(subject, VIDEO, name="video")


def _whole(subject: ModelContext, medium: VisionInput, *, name: str) -> BuiltPart:
    if medium.grid not in forward_names(subject.model):
        what = type(subject.model).__name__
        raise NoPartError(f"{what} takes no {medium.grid}, so it has no part {name}", hint="Scan another part")
    grids = _grids(subject, medium)
    first, second = (
        _whole_inputs(subject, medium, grid=grid, around=around) for grid, around in zip(grids, _AROUND, strict=True)
    )
    sequence = {1: "sequence"}
    axes = {
        "input_ids": sequence,
        "attention_mask": sequence,
        "mm_token_type_ids": sequence,
        medium.pixels: {0: "patches"},
    }
    return assemble(name, subject, inputs=first, other_inputs=second, axes=axes)


def _encoder(model: nn.Module) -> tuple[str, nn.Module]:
    """The name and the submodule that takes a grid of patches."""
    for name, module in model.named_modules():
        if "grid_thw" in forward_names(module):
            return name, module
    what = type(model).__name__
    raise NoPartError(f"{what} has no submodule that takes grid_thw", hint="Scan another part")


def _vision_inputs(subject: ModelContext, encoder: nn.Module, grid: Grid) -> dict[str, Any]:
    names = forward_names(encoder)
    merge = {name: subject.integers([subject.vision_config.spatial_merge_size]) for name in names if name in _MERGES}
    return {names[0]: _patches(subject, grid), "grid_thw": subject.integers([grid]), **merge}


def _text_inputs(subject: ModelContext, ids: Any) -> dict[str, Any]:
    settings = {"use_cache": False} if "use_cache" in forward_names(subject.model) else {}
    return {"input_ids": ids, "attention_mask": ids.new_ones(ids.shape), **settings}


def _whole_inputs(subject: ModelContext, medium: VisionInput, *, grid: Grid, around: tuple[int, int]) -> dict[str, Any]:
    """Text, the vision start token, one placeholder for each merged patch, the end token, and text again."""
    import torch

    config, names = subject.config, forward_names(subject.model)
    frames, height, width = grid
    count = frames * height * width // subject.config.vision_config.spatial_merge_size**2
    placeholder = getattr(config, f"{medium.kind}_token_id")
    picture = [config.vision_start_token_id, *[placeholder] * count, config.vision_end_token_id]
    before, after = (subject.token_ids(1, length) for length in around)
    ids = torch.cat([before, subject.integers([picture]), after], dim=1)
    inputs = {
        **_text_inputs(subject, ids),
        medium.pixels: _patches(subject, grid),
        medium.grid: subject.integers([grid]),
    }
    if "mm_token_type_ids" in names:
        inputs["mm_token_type_ids"] = (ids == placeholder).to(torch.int32) * _TOKEN_TYPE[medium.kind]
    if medium is VIDEO and "second_per_grid_ts" in names:
        inputs["second_per_grid_ts"] = subject.integers([_SECONDS_PER_GRID])
    return inputs


def _patches(subject: ModelContext, grid: Grid) -> Any:
    """Flattened patches: (count, channels * frames of a patch * height * width of a patch)."""
    vision = subject.vision_config
    channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", None) or 3
    features = channels * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
    return subject.floats(grid[0] * grid[1] * grid[2], features)


def _grids(subject: ModelContext, medium: VisionInput) -> tuple[Grid, Grid]:
    """The grid of the options' image size, and another whose windows are not all full."""
    vision = subject.vision_config
    merge = vision.spatial_merge_size
    height, width = (max(1, side // (vision.patch_size * merge)) * merge for side in subject.image_size)
    other = other_grid(height, width, merge=merge)
    return (medium.frames[0], height, width), (medium.frames[1], *other)


def other_grid(height: int, width: int, *, merge: int) -> tuple[int, int]:
    """Patches of another image: a merged patch less in height and one more in width; not as many in all."""
    lower, wider = height - merge, width + merge
    if lower > 0 and lower * wider != height * width:
        return lower, wider
    return height + merge, width + 2 * merge

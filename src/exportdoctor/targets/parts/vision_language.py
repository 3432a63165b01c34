"""The parts of a vision-language model whose images come as patches with a grid.

Read from the signatures of the installed transformers: 4.53 to 5.23 differ in what their forwards take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import NoPartError
from exportdoctor.targets.parts.model_context import ModelContext, assemble, forward_names

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.targets.built import BuiltPart
    from exportdoctor.targets.sizes.dynamic_shapes import Axes

Grid = tuple[int, int, int]
"""Patches along time, height and width."""

_BATCH, _LENGTH = (2, 3), (13, 22)
_AROUND = ((5, 11), (7, 4))
"""Text tokens before and after the image, for each of the two input sets."""

_SECONDS_PER_GRID = 1.0
_SECONDS = "second_per_grid_ts"
_MERGES = ("merge_sizes", "image_merge_sizes")
"""How many patches of each side are merged, one number an image."""
_TOKEN_TYPE = {"image": 1, "video": 2}


@dataclass(frozen=True, kw_only=True)
class VisionInput:
    """How one kind of picture enters the whole model: its name there, its inputs, its frames at two sizes.

    `several` names the axis along which there may be more than one.
    """

    kind: str
    pixels: str
    grid: str
    frames: tuple[int, int]
    several: str


IMAGE = VisionInput(kind="image", pixels="pixel_values", grid="image_grid_thw", frames=(1, 1), several="pictures")
VIDEO = VisionInput(kind="video", pixels="pixel_values_videos", grid="video_grid_thw", frames=(2, 3), several="videos")


def vision_part(subject: ModelContext, *, name: str = "vision") -> BuiltPart:
    """The image encoder alone, which may be the whole model: patches (count, features), their grid (images, 3)."""
    prefix, module = _encoder(subject.model)
    patches = forward_names(module)[0]

    def make(*sets: Sequence[Grid], several: str = "") -> BuiltPart:
        inputs = [_vision_inputs(subject, module, grids) for grids in sets]
        axes = {patches: {0: "patches"}, **({key: {0: several} for key in inputs[0] if key != patches and several})}
        return _assemble(name, subject, inputs, axes, module=module, prefix=prefix)

    example, other = _grids(subject, IMAGE)
    small, smaller = _small_grids(subject, IMAGE)
    sets = ([example, smaller, small], [small, other], [smaller])
    return _with_several(make([example], [other]), partial(make, *sets, several=IMAGE.several))


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
    example, other = _grids(subject, medium)
    small, smaller = _small_grids(subject, medium)
    first, second = (
        _whole_inputs(subject, medium, rows=[[grid]], around=around)
        for grid, around in zip((example, other), _AROUND, strict=True)
    )
    texts = ("input_ids", "attention_mask", "mm_token_type_ids")
    patches = {medium.pixels: {0: "patches"}}

    def several() -> BuiltPart:
        make = partial(_whole_inputs, subject, medium, around=_AROUND[0])
        inputs = [
            make(rows=[[example, small], [smaller]], left=True),
            make(rows=[[other], [small, smaller], [small]]),
            make(rows=[[small, smaller]]),
            make(rows=[[small], []], left=True),
            second,
        ]
        axes: Axes = {name: {0: "batch", 1: "sequence"} for name in texts}
        counted = {name: {0: medium.several} for name in (medium.grid, _SECONDS)}
        return _assemble(name, subject, inputs, {**axes, **patches, **counted})

    part = _assemble(name, subject, [first, second], {**{key: {1: "sequence"} for key in texts}, **patches})
    return _with_several(part, several)


def _assemble(name: str, subject: ModelContext, sets: Sequence[dict[str, Any]], axes: Axes, **where: Any) -> BuiltPart:
    """The part on these input sets; the first is its example."""
    part = assemble(name, subject, inputs=sets[0], other_inputs=sets[1], axes=axes, **where)
    return replace(part, more_inputs=tuple(((), one) for one in sets[1:])) if part.more_inputs else part


def _with_several(part: BuiltPart, several: Callable[[], BuiltPart]) -> BuiltPart:
    return part if part.dynamic_shapes is None else replace(part, several=several)


def _encoder(model: nn.Module) -> tuple[str, nn.Module]:
    """The name and the submodule that takes a grid of patches."""
    for name, module in model.named_modules():
        if "grid_thw" in forward_names(module):
            return name, module
    what = type(model).__name__
    raise NoPartError(f"{what} has no submodule that takes grid_thw", hint="Scan another part")


def _vision_inputs(subject: ModelContext, encoder: nn.Module, grids: Sequence[Grid]) -> dict[str, Any]:
    names, sides = forward_names(encoder), [subject.vision_config.spatial_merge_size] * len(grids)
    merge = {name: subject.integers(sides) for name in names if name in _MERGES}
    return {names[0]: _patches(subject, grids), "grid_thw": subject.integers(grids), **merge}


def _text_inputs(subject: ModelContext, ids: Any) -> dict[str, Any]:
    settings = {"use_cache": False} if "use_cache" in forward_names(subject.model) else {}
    return {"input_ids": ids, "attention_mask": ids.new_ones(ids.shape), **settings}


def _whole_inputs(
    subject: ModelContext,
    medium: VisionInput,
    *,
    rows: Sequence[Sequence[Grid]],
    around: tuple[int, int],
    left: bool = False,
) -> dict[str, Any]:
    """Text with pictures, and text after each; every row a token longer, padded at its end or at its `left`.

    A picture is the vision start token, one placeholder for each merged patch, and the end token.
    """
    import torch

    config, names = subject.config, forward_names(subject.model)
    placeholder = getattr(config, f"{medium.kind}_token_id")
    texts = []
    for place, grids in enumerate(rows):
        pieces = [subject.token_ids(1, around[0] + place)]
        for frames, height, width in grids:
            count = frames * height * width // subject.config.vision_config.spatial_merge_size**2
            picture = [config.vision_start_token_id, *[placeholder] * count, config.vision_end_token_id]
            pieces += [subject.integers([picture]), subject.token_ids(1, around[1])]
        texts.append(torch.cat(pieces, dim=1))
    length = max(text.shape[1] for text in texts)
    ids, mask = subject.token_ids(len(rows), length), subject.integers([[0] * length] * len(rows))
    for row, text in enumerate(texts):
        kept = slice(length - text.shape[1], None) if left else slice(text.shape[1])
        ids[row, kept], mask[row, kept] = text[0], 1
    grids = [grid for row in rows for grid in row]
    inputs = {
        **_text_inputs(subject, ids),
        "attention_mask": mask,
        medium.pixels: _patches(subject, grids),
        medium.grid: subject.integers(grids),
    }
    if "mm_token_type_ids" in names:
        inputs["mm_token_type_ids"] = (ids == placeholder).to(torch.int32) * _TOKEN_TYPE[medium.kind]
    if medium is VIDEO and _SECONDS in names:
        inputs[_SECONDS] = subject.integers([_SECONDS_PER_GRID] * len(grids))
    return inputs


def _patches(subject: ModelContext, grids: Sequence[Grid]) -> Any:
    """Flattened patches: (count, channels * frames of a patch * height * width of a patch)."""
    vision = subject.vision_config
    channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", None) or 3
    features = channels * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
    return subject.floats(sum(frames * height * width for frames, height, width in grids), features)


def _small_grids(subject: ModelContext, medium: VisionInput) -> tuple[Grid, Grid]:
    """Two pictures of a few merged patches, of different shapes."""
    merge, (first, second) = subject.vision_config.spatial_merge_size, medium.frames
    return (first, 2 * merge, 3 * merge), (second, 2 * merge, merge)


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

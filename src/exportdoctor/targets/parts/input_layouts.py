"""The shapes of inputs, by the names that transformers gives them, never by model.

Where one name stands for several layouts, each is listed, and the caller keeps the first that eager accepts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exportdoctor.targets.sizes.image_sizes import pair

if TYPE_CHECKING:
    import torch

    from exportdoctor.targets.parts.model_context import ModelContext


@dataclass(frozen=True, kw_only=True)
class ExampleSizes:
    """The sizes of one input set. All of a set differ, so that no two dimensions are equal by accident."""

    batch: int
    sequence: int
    decoder_sequence: int
    samples: int
    frames: int
    patches: int
    prompts: int
    points: int


FIRST = ExampleSizes(batch=2, sequence=13, decoder_sequence=7, samples=4000, frames=56, patches=10, prompts=3, points=5)
SECOND = ExampleSizes(
    batch=3, sequence=22, decoder_sequence=11, samples=5400, frames=72, patches=17, prompts=4, points=8
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way to make an input: its shape by size, and the names of its dynamic dimensions."""

    make: Callable[[ModelContext, ExampleSizes], torch.Tensor]
    axes: dict[int, str]


def _ids(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.sentence_ids(sizes.batch, sizes.sequence)


def _decoder_ids(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.sentence_ids(sizes.batch, sizes.decoder_sequence)


def _mask(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.integers([[1] * sizes.sequence] * sizes.batch)


def _hidden_states(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.floats(sizes.batch, sizes.sequence, subject.text_config.hidden_size)


def image_input(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    """Pictures of the size that the configuration states."""
    return subject.floats(sizes.batch, channels(subject), *subject.image_size)


def _image_sizes(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.integers([list(subject.image_size)] * sizes.batch)


def _video(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.floats(sizes.batch, _pictures(subject), channels(subject), *subject.image_size)


def _pictures(subject: ModelContext) -> int:
    """How many pictures a clip, or a text with several, has."""
    config = subject.vision_config
    return int(getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", None) or 4)


def _mask_of_pictures(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.integers([[[1] * _pictures(subject)] * sizes.sequence] * sizes.batch)


def _image_sides_in_patches(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    sides = zip(subject.image_size, pair(subject.vision_config.patch_size), strict=True)
    return subject.integers([[side // patch for side, patch in sides]] * sizes.batch)


def _patches_of_grid(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    config = subject.vision_config
    height, width = pair(config.patch_size)
    features = channels(subject) * (getattr(config, "temporal_patch_size", None) or 1) * height * width
    return subject.floats(math.prod(GRID), features)


def _patches_as_pictures(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.floats(math.prod(GRID), channels(subject), *pair(subject.vision_config.patch_size))


def _grid(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.integers([GRID])


def _patches_by_row(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    height, width = pair(subject.vision_config.patch_size)
    return subject.floats(sizes.batch, _side(subject) ** 2, channels(subject) * height * width)


def _side(subject: ModelContext) -> int:
    """The patches along each side of a picture: two for each that are pooled to one."""
    return 2 * int(getattr(subject.vision_config, "pooling_kernel_size", None) or 2)


def _mask_of_patches(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.integers([[1] * _side(subject) ** 2] * sizes.batch)


def _sides_in_patches(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.integers([[_side(subject)] * 2] * sizes.batch)


def _positions_of_patches(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    side = _side(subject)
    return subject.integers([[[x, y] for y in range(side) for x in range(side)]] * sizes.batch)


def _merge_size(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.integers([getattr(subject.vision_config, "spatial_merge_size", None) or 1])


def _samples(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.floats(sizes.batch, sizes.samples)


def _channels_of_samples(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.floats(sizes.batch, getattr(subject.config, "audio_channels", None) or 1, sizes.samples)


def _spectrogram_of_fixed_length(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    config = subject.audio_config
    return subject.floats(sizes.batch, config.num_mel_bins, 2 * config.max_source_positions)


def _spectrogram(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.floats(sizes.batch, sizes.frames, _audio_features(subject))


def _mask_of_fixed_length(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.integers([[1] * (2 * subject.audio_config.max_source_positions)] * sizes.batch)


def _mask_of_frames(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.integers([[1] * sizes.frames] * sizes.batch)


def _spectrogram_as_image(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    config = subject.audio_config
    return subject.floats(sizes.batch, config.max_length, config.num_mel_bins)


def _series(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    config = subject.config
    return subject.floats(sizes.batch, config.context_length, getattr(config, "num_input_channels", 1))


def channels(subject: ModelContext) -> int:
    """The colours of a picture."""
    config = subject.vision_config
    return int(getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3)


def _audio_features(subject: ModelContext) -> int:
    names = ("input_feat_per_channel", "feature_projection_input_dim", "feature_size", "num_mel_bins", "input_dim")
    found = (getattr(subject.audio_config, name, None) for name in names)
    return next((int(value) for value in found if value), 80)


GRID = (1, 4, 4)
"""Patches along time, height and width of one picture; any merge of two by two fits."""
_BATCH_SEQUENCE = {0: "batch", 1: "sequence"}
_BATCH = {0: "batch"}

_FRAME_MASKS = (
    Layout(make=_mask_of_fixed_length, axes=_BATCH),
    Layout(make=_mask_of_frames, axes={0: "batch", 1: "frames"}),
)

LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "input_ids": (Layout(make=_ids, axes=_BATCH_SEQUENCE),),
    "attention_mask": (Layout(make=_mask, axes=_BATCH_SEQUENCE),),
    "decoder_input_ids": (Layout(make=_decoder_ids, axes={0: "batch", 1: "decoder sequence"}),),
    "inputs_embeds": (Layout(make=_hidden_states, axes=_BATCH_SEQUENCE),),
    "hidden_states": (Layout(make=_hidden_states, axes=_BATCH_SEQUENCE),),
    "pixel_values": (Layout(make=image_input, axes=_BATCH), Layout(make=_video, axes=_BATCH)),
    "image_sizes": (Layout(make=_image_sizes, axes=_BATCH),),
    "target_sizes": (Layout(make=_image_sides_in_patches, axes=_BATCH),),
    "image_attention_mask": (Layout(make=_mask_of_pictures, axes=_BATCH_SEQUENCE),),
    "pixel_values_videos": (Layout(make=_video, axes=_BATCH),),
    "input_features": (
        Layout(make=_spectrogram_of_fixed_length, axes=_BATCH),
        Layout(make=_spectrogram, axes={0: "batch", 1: "frames"}),
    ),
    "feature_attention_mask": _FRAME_MASKS,
    "input_features_mask": _FRAME_MASKS,
    "input_values": (
        Layout(make=_samples, axes={0: "batch", 1: "samples"}),
        Layout(make=_spectrogram_as_image, axes=_BATCH),
        Layout(make=_channels_of_samples, axes={0: "batch", 2: "samples"}),
    ),
    "past_values": (Layout(make=_series, axes=_BATCH),),
}

GRID_LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    **dict.fromkeys(("pixel_values", "pixel_values_videos"), (Layout(make=_patches_of_grid, axes={}),)),
    **dict.fromkeys(("grid_thw", "image_grid_thw", "video_grid_thw"), (Layout(make=_grid, axes={}),)),
    **dict.fromkeys(("merge_sizes", "image_merge_sizes", "video_merge_sizes"), (Layout(make=_merge_size, axes={}),)),
}
"""Where a picture comes as patches with a grid."""

TOWER_LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    **GRID_LAYOUTS,
    "pixel_values": (*GRID_LAYOUTS["pixel_values"], Layout(make=_patches_as_pictures, axes={})),
}
"""What takes a grid itself may take each patch as a small picture."""

PATCH_LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "pixel_values": (Layout(make=_patches_by_row, axes=_BATCH),),
    "pixel_attention_mask": (Layout(make=_mask_of_patches, axes=_BATCH),),
    "spatial_shapes": (Layout(make=_sides_in_patches, axes=_BATCH),),
    **dict.fromkeys(("pixel_position_ids", "image_position_ids"), (Layout(make=_positions_of_patches, axes=_BATCH),)),
}
"""Where a picture comes as a row of patches with its sides counted in them, or with the place of each."""

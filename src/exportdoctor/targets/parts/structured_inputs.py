"""Inputs whose numbers mean something to the model: boxes on a page, cells of a table, patches with places, points.

A processor always gives them, though forward may have a default for each.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from exportdoctor.targets.parts.input_layouts import ExampleSizes, Layout, channels, image_input
from exportdoctor.targets.parts.model_context import SEED, ModelContext, forward_names, nested_configurations
from exportdoctor.targets.sizes.image_sizes import pair

if TYPE_CHECKING:
    import torch

PLACES_OF_IMAGE = "image_embeds_position_mask"
"""Ones where the features of an image go into the text."""
_WHOLE_PAGE = 1000
_COLUMNS = 3
"""Of a table, of the words on a page and of the patches of a picture."""


def structured_layouts(subject: ModelContext) -> dict[str, tuple[Layout, ...]]:
    """The layouts of those that the model takes, by name."""
    names = forward_names(subject.model)
    found: dict[str, tuple[Layout, ...]] = {name: (layout,) for name, layout in _LAYOUTS.items() if name in names}
    if not getattr(subject.config, "type_vocab_sizes", None):
        found.pop("token_type_ids", None)
    if "flattened_patches" in names and "attention_mask" in names and "input_ids" not in names:
        found["attention_mask"] = (Layout(make=_mask_of_patches, axes=_BATCH_PATCHES),)
    return found


def _boxes(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    """Boxes of words in rows down a page, none for the first token: whole numbers below what the model has
    embeddings for, fractions of the page where it has none."""
    most = getattr(subject.config, "max_2d_position_embeddings", None)
    page = min(_WHOLE_PAGE, most - 1) if most else _WHOLE_PAGE
    width, height = page // (_COLUMNS + 1), page // (sizes.sequence // _COLUMNS + 2)
    words = [[0, 0, 0, 0]]
    for word in range(sizes.sequence - 1):
        left, top = word % _COLUMNS * width, word // _COLUMNS * height
        words.append([left, top, left + width - word % 2, top + height])
    boxes = subject.integers([words] * sizes.batch)
    return boxes if most else _place(subject, boxes / page)


def _table_types(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    """Types of tokens, each below its number in the configuration: a question, then cells by column and row.

    The first row, 0, is that of the headings.
    """
    limits = subject.config.type_vocab_sizes
    question = max(1, sizes.sequence // 4)
    tokens = [[0] * len(limits)] * question
    for cell in range(sizes.sequence - question):
        column, row = cell % _COLUMNS + 1, cell // _COLUMNS
        types = (1, column, row, cell % 2, row, row)
        padded = itertools.chain(types, itertools.repeat(0))
        tokens.append([min(one, limit - 1) for one, limit in zip(padded, limits, strict=False)])
    return subject.integers([tokens] * sizes.batch)


def _flattened_patches(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    """Patches behind their row and column, both counted from 1."""
    import torch

    config = subject.vision_config
    stated = getattr(config, "patch_embed_hidden_size", None)
    features = stated or math.prod(pair(config.patch_size)) * channels(subject)
    most = _limit(config, "seq_len", "max_num_patches") - 1
    places = [[min(patch // _COLUMNS + 1, most), min(patch % _COLUMNS + 1, most)] for patch in range(sizes.patches)]
    values = torch.randn(sizes.batch, sizes.patches, features, generator=torch.Generator().manual_seed(SEED))
    rows = torch.tensor([places] * sizes.batch, dtype=values.dtype)
    return _place(subject, torch.cat([rows, values], dim=-1))


def _limit(config: Any, *names: str) -> int:
    """The first of these settings; a large number where there is none."""
    found = (getattr(one, name, None) for one in nested_configurations(config) for name in names)
    return next((size for size in found if isinstance(size, int) and size > 1), _WHOLE_PAGE)


def _mask_of_patches(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    return subject.integers([[1] * sizes.patches] * sizes.batch)


def _points(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    """Points in each picture, in pixels: some for each of the masks that are asked for."""
    import torch

    height, width = subject.image_size
    generator = torch.Generator().manual_seed(SEED)
    shares = torch.rand(sizes.batch, sizes.prompts, sizes.points, 2, generator=generator)
    return _place(subject, shares * torch.tensor([width, height]))


def _labels_of_points(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    """Points on the object and beside it, in turn."""
    return subject.integers([[[1 - point % 2 for point in range(sizes.points)]] * sizes.prompts] * sizes.batch)


def _no_places(subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    """Text alone; what is proposed puts the places of an image before it."""
    return subject.integers([[0] * sizes.sequence] * sizes.batch)


def _place(subject: ModelContext, made: torch.Tensor) -> torch.Tensor:
    placed: torch.Tensor = subject.place(made)
    return placed


_BATCH_SEQUENCE, _BATCH_PATCHES = {0: "batch", 1: "sequence"}, {0: "batch", 1: "patches"}
_BATCH_POINTS = {0: "batch", 1: "prompts", 2: "points"}
_LAYOUTS = {
    "bbox": Layout(make=_boxes, axes=_BATCH_SEQUENCE),
    "image": Layout(make=image_input, axes={0: "batch"}),
    "token_type_ids": Layout(make=_table_types, axes=_BATCH_SEQUENCE),
    "flattened_patches": Layout(make=_flattened_patches, axes=_BATCH_PATCHES),
    "input_points": Layout(make=_points, axes=_BATCH_POINTS),
    "input_labels": Layout(make=_labels_of_points, axes=_BATCH_POINTS),
    PLACES_OF_IMAGE: Layout(make=_no_places, axes=_BATCH_SEQUENCE),
}

"""Inputs that the model's own processors make, with their defaults from the installed transformers.

A feature extractor, an image or a video processor gets random sounds, pictures or clips; what it returns under names
that the forward takes are inputs, and the dimensions in which two batches differ are their axes. A processor whose
packages are missing makes none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from exportdoctor.targets.eager import install_command
from exportdoctor.targets.parts.input_layouts import FIRST, SECOND, ExampleSizes, Layout
from exportdoctor.targets.parts.model_context import SEED, ModelContext, forward_names, nested_configurations
from exportdoctor.targets.sizes.image_sizes import ImageSize, pair

if TYPE_CHECKING:
    import torch

_TABLES = (
    ("feature_extraction_auto", "FEATURE_EXTRACTOR_MAPPING"),
    ("image_processing_auto", "IMAGE_PROCESSOR_MAPPING"),
    ("video_processing_auto", "VIDEO_PROCESSOR_MAPPING"),
)
_SHARED = {"patch_size": "patch_size", "temporal_patch_size": "temporal_patch_size", "merge_size": "spatial_merge_size"}
"""Settings of processors that a configuration has too, and their names there."""
_SECONDS = 1.0
_RATE = 16_000
_FRAMES = 4
_LARGEST_SIDE = 1024

Processor = Callable[[ModelContext, ExampleSizes], Mapping[str, Any]]


@lru_cache(maxsize=1)
def processed_layouts(subject: ModelContext) -> dict[str, Layout]:
    """The inputs that processors make for this model, by name; none where no processor can be made."""
    names = forward_names(subject.model)
    found: dict[str, Layout] = {}
    for processor in _find_processors(subject)[0]:
        with suppress(Exception):
            first, second = processor(subject, FIRST), processor(subject, SECOND)
            for name, one in first.items():
                of_text = name == "attention_mask" and "input_ids" in names
                if name in names and name not in found and not of_text:
                    axes = _axes(one.shape, second[name].shape)
                    found[name] = Layout(make=partial(_make_input, processor, name), axes=axes)
    return found


def _make_input(processor: Processor, name: str, subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    made: torch.Tensor = subject.place(processor(subject, sizes)[name].clone())
    return made


def _axes(first: tuple[int, ...], second: tuple[int, ...]) -> dict[int, str]:
    """The dimensions that differ between two batches; what grows and is no batch counts frames."""
    pairs = enumerate(zip(first, second, strict=True))
    return {
        place: "batch" if (one, other) == (FIRST.batch, SECOND.batch) else "frames"
        for place, (one, other) in pairs
        if one != other
    }


def packages_for_processors(subject: ModelContext) -> str:
    """The pip command for what is missing to make the model's processors; empty where nothing is."""
    return _find_processors(subject)[1]


@lru_cache(maxsize=1)
def _find_processors(subject: ModelContext) -> tuple[tuple[Processor, ...], str]:
    """A call for each processor that transformers lists for the model's configurations, and that can be made.

    And the pip command for those whose packages are missing.
    """
    found: list[Processor] = []
    missing = ""
    for config in nested_configurations(subject.config):
        for module, table in _TABLES:
            for kind in _classes(module, table, type(config)):
                try:
                    found.append(partial(_process, _fit(kind(), subject)))
                    break
                except ImportError as error:
                    missing = missing or install_command(error)
                except Exception:
                    continue  # it has settings without defaults
    return tuple(found), missing


def _fit(processor: Any, subject: ModelContext) -> Any:
    """The processor with the settings that the configuration shares with it: its defaults may be another model's."""
    for config in nested_configurations(subject.vision_config):
        for theirs, ours in _SHARED.items():
            value = getattr(config, ours, None)
            if isinstance(value, int) and isinstance(getattr(processor, theirs, None), int):
                setattr(processor, theirs, value)
    return processor


def _classes(module: str, table: str, config: type) -> list[Any]:
    with suppress(Exception):
        listed = getattr(import_module(f"transformers.models.auto.{module}"), table).get(config, None)
        values = listed.values() if isinstance(listed, Mapping) else listed
        return [kind for kind in (values if isinstance(listed, Mapping | tuple | list) else [values]) if kind]
    return []


def _process(processor: Any, subject: ModelContext, sizes: ExampleSizes) -> Mapping[str, Any]:
    """What the processor makes of a batch, tensors alone."""
    usual = subject.image_size
    with suppress(TypeError, ValueError):  # it states none
        stated = pair(dict(processor.size) if getattr(processor, "size", None) else usual)
        usual = stated if max(stated) <= _LARGEST_SIDE else usual  # some state a number of pixels
    return _process_batch(processor, subject.options.image_size or usual, sizes)


@lru_cache(maxsize=4)
def _process_batch(processor: Any, image_size: ImageSize, sizes: ExampleSizes) -> Mapping[str, Any]:
    import numpy as np
    import torch

    draw = np.random.default_rng(SEED)
    kind = type(processor).__name__
    if "FeatureExtractor" in kind:
        rate = int(getattr(processor, "sampling_rate", None) or _RATE)
        seconds = _SECONDS * sizes.samples / FIRST.samples
        sounds = [draw.standard_normal(int(rate * seconds)).astype(np.float32) for _ in range(sizes.batch)]
        made = processor(sounds, sampling_rate=rate, return_tensors="pt")
    else:
        shape = (_FRAMES, *image_size, 3) if "Video" in kind else (*image_size, 3)
        pictures = [draw.integers(0, 256, shape, dtype=np.uint8) for _ in range(sizes.batch)]
        made = processor(pictures, return_tensors="pt")
    return {name: value for name, value in made.items() if isinstance(value, torch.Tensor)}

"""The image sizes that a configuration can take: multiples of patch size times merge size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exportdoctor.core.errors import UsageError

ImageSize = tuple[int, int]
"""Height and width in pixels."""

_USUAL_SIDE = 224


def image_unit(config: Mapping[str, Any]) -> int:
    """What height and width must be multiples of, in pixels; 1 if the configuration does not limit them."""
    vision = vision_settings(config)
    patch = vision.get("patch_size") or vision.get("spatial_patch_size")
    return _side(patch) * _side(vision.get("spatial_merge_size"))


def _side(value: Any) -> int:
    """The largest of one or several sides; 1 for what is no side, which transformers may refuse."""
    sides = value if isinstance(value, list | tuple) else (value,)
    return max((side for side in sides if isinstance(side, int) and side > 0), default=1)


def vision_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a configuration that describes its image encoder: nested or the configuration itself."""
    nested = config.get("vision_config")
    return nested if isinstance(nested, Mapping) else config


def pair(side: Any) -> ImageSize:
    """Height and width from an int, a pair or a dict, as configurations write them."""
    if isinstance(side, Mapping):
        edge = side.get("shortest_edge", _USUAL_SIDE)
        return int(side.get("height", edge)), int(side.get("width", edge))
    if isinstance(side, list | tuple):
        return int(side[0]), int(side[-1])
    return int(side), int(side)


def check_image_size(size: ImageSize, *, unit: int) -> ImageSize:
    """The size itself, or `UsageError` that names the nearest sizes that would do."""
    height, width = size
    if height > 0 and width > 0 and height % unit == 0 and width % unit == 0:
        return size
    near = " or ".join(f"{h}x{w}" for h, w in _nearest_sizes(size, unit))
    raise UsageError(
        f"Image size {height}x{width} does not fit: height and width must be multiples of {unit}",
        hint=f"Nearest: {near}",
    )


def _nearest_sizes(size: ImageSize, unit: int) -> tuple[ImageSize, ...]:
    below = tuple(max(unit, side // unit * unit) for side in size)
    above = tuple(max(unit, -(-side // unit) * unit) for side in size)
    pairs = ((below[0], below[1]), (above[0], above[1]))
    return tuple(dict.fromkeys(pairs))

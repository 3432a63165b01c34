"""A small model of the same kind, made from the target's configuration with few layers, narrow ones and few tokens.

It is small enough for real values, so cures are searched and proved on it. It usually fails where the large one fails;
the caller has to check that it does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from exportdoctor.core.errors import TargetError
from exportdoctor.reduce import Verdict, ddmin, drive
from exportdoctor.targets.configuration import ConfigurationPlan
from exportdoctor.targets.model.model_class import load_config
from exportdoctor.targets.sizes.image_sizes import ImageSize, image_unit, vision_settings
from exportdoctor.targets.small_config import (
    SettingPath,
    changed_settings,
    counts_changed,
    keep_settings,
    shrink_config,
)

if TYPE_CHECKING:
    from exportdoctor.targets.build import Plan

_WINDOWS = (1.5, 2.0)
"""Height and width of the image, in windows: some are full and some are not."""
_SMALL_SIDE = 512
"""In pixels. The unit of what cuts an image into large patches can be as large as the usual image."""


def has_small_model(plan: Plan) -> bool:
    """Whether `plan_small_models` takes it: a configuration can be made small, a user's module cannot."""
    return isinstance(plan, ConfigurationPlan)


def plan_small_models(plan: Plan, *, small_images: bool = False) -> Iterator[ConfigurationPlan]:
    """Plans of small models, with random weights in float32 on the CPU, to be tried in order. Imports transformers.

    The narrow ones come before those that have the configuration's own widths, which may belong together. With
    `small_images` each is tried with small images before those of the usual size, where images may be small.
    """
    assert isinstance(plan, ConfigurationPlan), "has_small_model(plan) is False"
    config = {**load_config(plan.config).to_dict(), **_architectures(plan.config)}
    narrow, wide = make_small(config), make_small(config, narrow=False)
    chosen = plan.recipe.chooses_image_size
    for small in (narrow,) if narrow == wide else (narrow, wide):
        if small_images and plan.recipe.takes_images and not chosen and max(_image_size(small)) <= _SMALL_SIDE:
            yield _small_plan(plan, small, small_images=True)
        yield _small_plan(plan, small, small_images=chosen)


def make_small(config: Mapping[str, Any], *, narrow: bool = True) -> dict[str, Any]:
    """`shrink_config`, but for the fewest settings without which transformers rejects it: these stay. Imports it."""
    small = shrink_config(config, narrow=narrow)
    if _is_accepted(small) or not _is_accepted(config):
        return small

    def judge(kept: tuple[SettingPath, ...]) -> Verdict:
        return Verdict.YES if _is_accepted(keep_settings(config, small, kept)) else Verdict.NO

    changed = tuple(changed_settings(config, small))
    return keep_settings(config, small, drive(ddmin(changed), judge, start=changed).smallest)


def keep_few_layers(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The configuration with its widths, and few layers of each kind, experts and tokens; which numbers of layers and
    of experts that changes, as `num_hidden_layers 2 for 40`. Both are unchanged where it has few layers already."""
    few = {**make_small(config, narrow=False), **_architectures(config)}
    changed = list(counts_changed(config, few))
    return (few, changed) if changed else (dict(config), [])


def _small_plan(plan: ConfigurationPlan, config: dict[str, Any], *, small_images: bool) -> ConfigurationPlan:
    size = _image_size(config) if small_images else None
    options = msgspec.structs.replace(
        plan.options, weights="random", dtype="float32", device="cpu", image_size=size or plan.options.image_size
    )
    title = f"{plan.title}, small model"
    return dataclasses.replace(plan, config=config, title=title, options=options, without_values=False)


def _is_accepted(config: Mapping[str, Any]) -> bool:
    with suppress(TargetError):
        load_config(dict(config))
        return True
    return False


def _architectures(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("architectures",) if key in config}


def _image_size(config: Mapping[str, Any]) -> ImageSize:
    """A small image with windows that are full and windows that are not."""
    unit = image_unit(config)
    window = vision_settings(config).get("window_size")
    across = max(1, window // unit) if isinstance(window, int) and window else 4
    height, width = (round(across * many) * unit for many in _WINDOWS)
    return height, width

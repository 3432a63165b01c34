"""Which parts a target has, and which of them are scanned.

A recipe is chosen by the structure that the configuration describes, never by the model's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exportdoctor.core.errors import TargetError, UsageError, did_you_mean
from exportdoctor.targets.sizes.image_sizes import vision_settings

VISION_LANGUAGE = "vision-language"
COMPOSITE = "composite"
ONE_FORWARD = "one-forward"

LAYERS = re.compile(r"(?:^|_)(?:n|num)_(?:\w+_)?layers?$|^num_blocks$|^(?:en|de)coder_layers$|^depth$|^n_layer$")
"""The keys of a configuration that say how many layers there are."""
MOST_LAYERS, _MOST_EXPERTS = 10_000, 100_000
EXPERTS = re.compile(r"(?:^|_)(?:n|num)_(?:\w+_)?experts$")
_SIZES = re.compile(r"_size$|_dim$|position_embeddings$|^n_positions$|^d_model$|^n_embd$")
_LARGEST_SIZE = 1_000_000_000

_GENERATORS = ("ForCausalLM", "LMHeadModel")
"""How Hugging Face ends the class names of decoders that generate text."""
_PLACEHOLDER = re.compile(r"^(?:image|video|audio)_token_(?:id|index)$")
_NO_MODEL = re.compile(r"quantization|rope|generation|task|compression|loss|scheduler")
"""Nested settings that are no model's."""
_QUERIES = frozenset({"num_queries", "num_object_queries", "num_detection_tokens"})
"""Settings of detectors, which have heads for classes, boxes and masks."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All the parts of a target, and those that are scanned by default.

    `takes_images`: an image size may be given. `chooses_image_size`: images may have any size, so we choose
    one unless it is given; otherwise the configuration states the size that the model was made for. `whole` is the part
    that is all of the model.
    """

    name: str
    available: tuple[str, ...]
    default: tuple[str, ...]
    takes_images: bool
    chooses_image_size: bool
    whole: str = "default"


def choose_recipe(config: Mapping[str, Any], *, name: str = "", has_inputs: bool = False) -> Recipe:
    """The recipe of this name, or the one that fits the configuration. Given inputs are those of one forward."""
    if has_inputs:
        parts: tuple[str, ...] = ("default",)
        return Recipe(name=ONE_FORWARD, available=parts, default=parts, takes_images=False, chooses_image_size=False)
    if (name or _recipe_by_structure(config)) == VISION_LANGUAGE:
        towers = ("vision", *(part for part in _nested_models(config) if part not in ("vision", "text")))
        # video runs the same code as full with other sizes: only scanned on request
        return Recipe(
            name=VISION_LANGUAGE,
            available=(*towers, "projector", "text", "decode", "prefill", "full", "video"),
            default=(*towers, "text", "decode", "full"),
            takes_images=True,
            chooses_image_size=True,
            whole="full",
        )
    nested = _nested_models(config)
    if nested and any(map(_PLACEHOLDER.match, config)):
        towers = tuple(part for part in nested if part != "text")
        default = (*towers, *(("text", "decode") if "text" in nested else ()), "full")
        return Recipe(
            name=COMPOSITE,
            available=(*towers, "projector", *(("text", "decode", "prefill") if "text" in nested else ()), "full"),
            default=default,
            takes_images=_takes_images(config),
            chooses_image_size=False,
            whole="full",
        )
    names = config.get("architectures")
    generates = any(name.endswith(_GENERATORS) for name in names) if names else config.get("use_cache") is True
    further = (
        *nested,
        *(("decode", "prefill") if generates else ()),
        *(("encoder", "decoder") if config.get("is_encoder_decoder") is True else ()),
        *(("heads",) if _QUERIES & config.keys() else ()),
    )
    return Recipe(
        name=ONE_FORWARD,
        available=("default", *dict.fromkeys(further)),
        default=("default",),
        takes_images=_takes_images(config),
        chooses_image_size=False,
    )


def _nested_models(config: Mapping[str, Any]) -> list[str]:
    """The names of the models that a configuration nests: `vision` of `vision_config`; text comes last."""
    found = [
        key.removesuffix("_config")
        for key, value in config.items()
        if key.endswith("_config") and isinstance(value, Mapping) and value and not _NO_MODEL.search(key)
    ]
    return sorted(found, key=lambda part: part == "text")


def check_size(config: Mapping[str, Any]) -> None:
    """Raise `TargetError` for more layers or experts, or larger sizes, than any machine builds, before one is made."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            check_size(value)
        elif not isinstance(value, int | float):
            continue
        elif LAYERS.search(key) and value > MOST_LAYERS:
            raise _too_large(key, value, f"more than {MOST_LAYERS} layers are not built")
        elif EXPERTS.search(key) and value > _MOST_EXPERTS:
            raise _too_large(key, value, f"more than {_MOST_EXPERTS} experts are not built")
        elif _SIZES.search(key) and value >= _LARGEST_SIZE:
            raise _too_large(key, value, f"sizes of {_LARGEST_SIZE:g} and more are not built")


def _too_large(key: str, value: float, what: str) -> TargetError:
    return TargetError(f"{key} is {value:g}: {what}", hint="Fix config.json")


def _recipe_by_structure(config: Mapping[str, Any]) -> str:
    """Vision-language: an image encoder that merges patches of any grid, and a placeholder token for them."""
    vision = vision_settings(config)
    nested = vision is not config
    merges = all(key in vision for key in ("spatial_merge_size", "patch_size"))
    return VISION_LANGUAGE if nested and merges and "image_token_id" in config else ONE_FORWARD


def _takes_images(config: Mapping[str, Any]) -> bool:
    vision = vision_settings(config)
    return any(key in vision for key in ("image_size", "num_channels", "in_channels", "patch_size"))


def choose_parts(
    asked: tuple[str, ...], *, available: tuple[str, ...], default: tuple[str, ...], has_inputs: bool = False
) -> tuple[str, ...]:
    """The parts to scan: those of `asked` in the target's own order, else the default ones; with inputs of a file there
    is one. Raises `UsageError`."""
    for name in asked:
        if name not in available:
            if has_inputs:
                raise UsageError("--inputs are those of the whole model in one forward", hint="Leave out --part")
            hint = f"{did_you_mean(name, available)}Parts: {', '.join(available)}"
            raise UsageError(f"There is no part {name!r}", hint=hint)
    return tuple(name for name in available if name in asked) if asked else default

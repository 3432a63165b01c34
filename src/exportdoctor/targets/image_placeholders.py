"""The only place that puts image placeholder tokens into the text of a model that merges images into it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from exportdoctor.targets.eager import run_method_once

if TYPE_CHECKING:
    import torch

    from exportdoctor.targets.subject import Subject


def with_placeholders(subject: Subject, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with as many placeholders behind each text as the model makes features of its image.

    Unchanged where there is no image, no text or no placeholder token.
    """
    config = subject.config
    token = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
    if token is None or not {"input_ids", "pixel_values"} <= inputs.keys():
        return inputs
    ids = inputs["input_ids"]
    count = _features(subject, inputs["pixel_values"]) // ids.shape[0]
    made = {**inputs, "input_ids": _append(ids, count, token)}
    if "attention_mask" in inputs:
        made["attention_mask"] = _append(inputs["attention_mask"], count, 1)
    return made


def _features(subject: Subject, pixels: torch.Tensor) -> int:
    """How many rows of features the model itself makes of these images."""
    import torch
    from torch.utils._pytree import tree_leaves

    method = getattr(subject.model, "get_image_features", None)
    if method is None:
        per_image = getattr(subject.config, "image_seq_length", None) or 1
        return int(per_image) * pixels.shape[0]
    config = subject.config
    settings = {name: getattr(config, name) for name in _required(method) if hasattr(config, name)}
    features = run_method_once(subject.model, method, pixel_values=pixels, **settings)
    features = getattr(features, "pooler_output", features)
    rows = [leaf for leaf in tree_leaves(features) if isinstance(leaf, torch.Tensor)]
    return sum(leaf.numel() // leaf.shape[-1] for leaf in rows)


def _required(method: Callable[..., Any]) -> list[str]:
    """Parameters without a default: transformers 4.53 wants there what the configuration says."""
    parameters = inspect.signature(method).parameters.values()
    return [parameter.name for parameter in parameters if parameter.default is parameter.empty]


def _append(tensor: torch.Tensor, count: int, value: int) -> torch.Tensor:
    import torch

    return torch.cat([tensor, tensor.new_full((tensor.shape[0], count), value)], dim=1)

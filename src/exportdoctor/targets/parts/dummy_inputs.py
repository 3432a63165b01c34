"""Proposes inputs for any transformers model, from its forward's signature and its modalities.

A model that merges images into its text gets as many placeholder tokens as it makes features of the images.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from exportdoctor.targets.eager import run_method_once
from exportdoctor.targets.parts.input_layouts import LAYOUTS, SECOND, ExampleSizes, Layout
from exportdoctor.targets.parts.model_context import ModelContext, forward_names
from exportdoctor.torch_internals.trees import tree_leaves

if TYPE_CHECKING:
    import torch

BY_MODALITY: Mapping[str, tuple[str, ...]] = {
    "text": ("input_ids", "attention_mask"),
    "image": ("pixel_values",),
    "video": ("pixel_values_videos",),
    "audio": ("input_features", "input_values"),
    "time": ("past_values",),
}
"""The inputs of each modality, as transformers 5 names them in `input_modalities`."""


@dataclass(frozen=True, kw_only=True)
class InputProposal:
    """Inputs to try: a layout for each name, and constants."""

    layouts: dict[str, Layout]
    constants: dict[str, Any]

    def inputs(self, subject: ModelContext, sizes: ExampleSizes) -> dict[str, Any]:
        """The keyword arguments at these sizes."""
        made = {name: layout.make(subject, sizes) for name, layout in self.layouts.items()}
        return {**_with_placeholders(subject, made), **self.constants}

    @property
    def axes(self) -> dict[str, dict[int, str]]:
        """The named axes of each input."""
        return {name: layout.axes for name, layout in self.layouts.items()}


def propose_inputs(subject: ModelContext) -> Iterator[InputProposal]:
    """What to try, most complete first: every modality, then the main input alone, then text alone."""
    names = forward_names(subject.model)
    constants = constants_for(subject)
    seen: list[tuple[str, ...]] = []
    for wanted in (_every_modality(subject), _main_input(subject), ("input_ids", "attention_mask")):
        chosen = tuple(name for name in names if name in wanted and name in LAYOUTS)
        if "input_ids" not in chosen:
            chosen = tuple(name for name in chosen if name != "attention_mask")
        if not chosen or chosen in seen:
            continue
        seen.append(chosen)
        for layouts in product(*(LAYOUTS[name] for name in chosen)):
            yield InputProposal(layouts=dict(zip(chosen, layouts, strict=True)), constants=constants)


def constants_for(subject: ModelContext) -> dict[str, Any]:
    """The arguments that are no tensors."""
    return {"use_cache": False} if "use_cache" in forward_names(subject.model) else {}


def within_limits(sizes: ExampleSizes, subject: ModelContext) -> ExampleSizes:
    """The sizes, with sequences no longer than the model has positions for (some reserve two)."""
    limit = getattr(subject.text_config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0 or limit >= SECOND.sequence + 2:
        return sizes
    share = sizes.sequence / (SECOND.sequence + 2)
    return replace(sizes, sequence=max(2, int(limit * share)), decoder_sequence=max(2, int(limit * share / 2)))


def _every_modality(subject: ModelContext) -> tuple[str, ...]:
    """The main input, the required parameters of forward, and the inputs of the model's modalities."""
    main = _main_input(subject)
    modalities = getattr(subject.model, "input_modalities", None) or ()
    modalities = (modalities,) if isinstance(modalities, str) else tuple(modalities)
    if hasattr(subject.config, "vision_config") and hasattr(subject.config, "text_config"):
        modalities = (*modalities, "image", "text")
    by_modality = [name for modality in modalities for name in BY_MODALITY.get(modality, ())]
    return (*main, *by_modality)


def _main_input(subject: ModelContext) -> tuple[str, ...]:
    main = getattr(subject.model, "main_input_name", "input_ids")
    mains = (main,) if isinstance(main, str) else tuple(main)
    mask = ("attention_mask",) if "input_ids" in mains else ()
    decoder = ("decoder_input_ids",) if getattr(subject.config, "is_encoder_decoder", False) else ()
    return (*mains, *mask, *decoder, *required_inputs(subject.model))


def required_inputs(model: Any) -> tuple[str, ...]:
    """The names of the parameters of the model's forward that have no default."""
    parameters = inspect.signature(model.forward).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in parameters if p.kind in positional and p.default is p.empty)


def _with_placeholders(subject: ModelContext, inputs: dict[str, Any]) -> dict[str, Any]:
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


def _features(subject: ModelContext, pixels: torch.Tensor) -> int:
    """How many rows of features the model itself makes of these images."""
    import torch

    method = getattr(subject.model, "get_image_features", None)
    if method is None:
        per_image = getattr(subject.config, "image_seq_length", None) or 1
        return int(per_image) * pixels.shape[0]
    config = subject.config
    settings = {name: getattr(config, name) for name in _required_parameters(method) if hasattr(config, name)}
    features = run_method_once(subject.model, method, pixel_values=pixels, **settings)
    features = getattr(features, "pooler_output", features)
    rows = [leaf for leaf in tree_leaves(features) if isinstance(leaf, torch.Tensor)]
    return sum(leaf.numel() // leaf.shape[-1] for leaf in rows)


def _required_parameters(method: Callable[..., Any]) -> list[str]:
    """Parameters without a default: transformers 4.53 takes settings of the configuration there."""
    parameters = inspect.signature(method).parameters.values()
    return [parameter.name for parameter in parameters if parameter.default is parameter.empty]


def _append(tensor: torch.Tensor, count: int, value: int) -> torch.Tensor:
    import torch

    return torch.cat([tensor, tensor.new_full((tensor.shape[0], count), value)], dim=1)

"""Proposes inputs for any transformers model, from its forward's signature and its modalities.

A model that merges images into its text gets as many placeholder tokens as it makes features of the images.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from exportdoctor.core.exception_text import text_of
from exportdoctor.core.failure.messages import first_line
from exportdoctor.targets.eager import run_method_once
from exportdoctor.targets.parts.input_layouts import (
    GRID_LAYOUTS,
    LAYOUTS,
    PATCH_LAYOUTS,
    SECOND,
    TOWER_LAYOUTS,
    ExampleSizes,
    Layout,
)
from exportdoctor.targets.parts.model_context import ModelContext, forward_names
from exportdoctor.targets.parts.processed_inputs import processed_layouts
from exportdoctor.targets.parts.structured_inputs import PLACES_OF_IMAGE, structured_layouts
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
_BESIDE = ("image_sizes", "feature_attention_mask", "input_features_mask", "target_sizes", "image_attention_mask")
"""What some models need beside these, and others take for a sign of something else."""
_PICTURES = frozenset({"pixel_values", "flattened_patches"})
"""The names under which the images go in whose places a mask states."""
MEDIA = frozenset(name for modality, names in BY_MODALITY.items() if modality != "text" for name in names)


class UnknownSizeError(LookupError):
    """An input cannot be made as proposed: the model was not asked, so that this says nothing about it."""


@dataclass(frozen=True, kw_only=True)
class InputProposal:
    """Inputs to try: a layout for each name, and constants. `left_out` are inputs of the model's modalities."""

    layouts: dict[str, Layout]
    constants: dict[str, Any]
    left_out: tuple[str, ...] = ()

    def inputs(self, subject: ModelContext, sizes: ExampleSizes) -> dict[str, Any]:
        """The keyword arguments at these sizes. Raises UnknownSizeError where the configuration lacks a size."""
        try:
            made = {name: layout.make(subject, sizes) for name, layout in self.layouts.items()}
        except (AttributeError, TypeError) as error:
            raise UnknownSizeError(first_line(error)) from error
        return {**_with_placeholders(subject, made), **self.constants}

    @property
    def axes(self) -> dict[str, dict[int, str]]:
        """The named axes of each input."""
        return {name: layout.axes for name, layout in self.layouts.items()}


def propose_inputs(subject: ModelContext) -> Iterator[InputProposal]:
    """What to try, most complete first: every modality, with what processors make too, then less."""
    names, constants = forward_names(subject.model), constants_for(subject)
    structured, plain = structured_layouts(subject), _every_modality(subject)
    complete, known = (*plain, *structured), {**LAYOUTS, **structured}
    seen: list[tuple[Layout, ...]] = []
    for wanted, found in _attempts(subject, plain, tuple(structured)):
        layouts = {**found, **{name: structured[name] for name in structured if name in wanted}}
        chosen = tuple(name for name in names if name in wanted and name in layouts)
        if "input_ids" not in chosen and layouts.get("attention_mask") is LAYOUTS["attention_mask"]:
            chosen = tuple(name for name in chosen if name != "attention_mask")
        made_of_all = [name for name in names if name in complete and name in known and name != "attention_mask"]
        left_out = tuple(name for name in made_of_all if name not in chosen)
        for one in product(*(layouts[name] for name in chosen)):
            if chosen and one not in seen:
                seen.append(one)
                made = dict(zip(chosen, one, strict=True))
                yield InputProposal(layouts=made, constants=constants, left_out=left_out)


def _attempts(
    subject: ModelContext, complete: tuple[str, ...], structured: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, tuple[Layout, ...]]]]:
    """Which inputs to try, and the layouts of each; the processors run only where the attempts before fail."""
    if any(name.endswith("grid_thw") for name in forward_names(subject.model)):
        images = [name for name in complete if name != "pixel_values_videos"]
        grids = [name for name in GRID_LAYOUTS if "video" not in name and not name.startswith("pixel")]
        tower = "grid_thw" in forward_names(subject.model)
        yield (*images, *grids), {**LAYOUTS, **(TOWER_LAYOUTS if tower else GRID_LAYOUTS)}
    if {"spatial_shapes", "pixel_position_ids", "image_position_ids"} & set(forward_names(subject.model)):
        yield (*complete, *PATCH_LAYOUTS), {**LAYOUTS, **PATCH_LAYOUTS}
    yield (*complete, *structured), LAYOUTS
    yield complete, LAYOUTS
    yield (*complete, *_BESIDE), LAYOUTS
    processed = {name: (layout,) for name, layout in processed_layouts(subject).items()}
    yield (*complete, *processed), {**LAYOUTS, **processed}
    text = BY_MODALITY["text"]
    media = [BY_MODALITY[one] for one in ("image", "audio", "video") if set(BY_MODALITY[one]) & set(complete)]
    for names in media if len(media) > 1 else ():
        yield (*text, *required_inputs(subject.model), *names), {**LAYOUTS, **processed}
    yield (*_main_input(subject), *structured), LAYOUTS
    yield _main_input(subject), LAYOUTS
    yield text, LAYOUTS


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
    if hasattr(subject.config, "audio_config"):
        modalities = (*modalities, "audio")
    if "video" in modalities and "pixel_values_videos" not in forward_names(subject.model):
        modalities = (*modalities, "image")  # the clip has the name of a picture
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


_MISMATCH = re.compile(
    r"(?P<kind>\w+) features and .*tokens do not match\D*?tokens: (?P<tokens>\d+)\D+(?P<features>\d+)"
)
_PLACEHOLDERS = (
    ("image", ("pixel_values",), 1),
    ("video", ("pixel_values_videos",), 2),
    ("audio", ("input_features", "input_values", "audio_values", "audio_features"), 3),
)
"""What is merged into a text, the inputs that hold it, and the type of its tokens."""


def _with_placeholders(subject: ModelContext, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with as many placeholders behind each text as the model makes features of what is merged into it.

    Unchanged where there is nothing to merge, no text or no placeholder token.
    """
    config, made = subject.config, dict(inputs)
    if "input_ids" not in made:
        return made
    places = getattr(config, "latent_query_num", 0)
    if places and PLACES_OF_IMAGE in made and not _PICTURES.isdisjoint(made):
        return _with_places_of_image(made, count=places)
    types = made["input_ids"] * 0
    for kind, names, number in _PLACEHOLDERS:
        token = _placeholder(config, kind)
        name = next((name for name in names if name in inputs), None)
        if token is None or name is None:
            continue
        count = _features(subject, kind, name, inputs) // made["input_ids"].shape[0]
        made["input_ids"] = _append(made["input_ids"], count, token)
        types = _append(types, count, number)
        if "attention_mask" in inputs:
            made["attention_mask"] = _append(made["attention_mask"], count, 1)
    if "mm_token_type_ids" in forward_names(subject.model) and bool(types.any()):
        made["mm_token_type_ids"] = types
    return made


def _with_places_of_image(inputs: dict[str, Any], *, count: int) -> dict[str, Any]:
    """The inputs with as many places for the features of an image before each text, and a mask that marks them."""
    import torch

    ids, mask = inputs["input_ids"], inputs[PLACES_OF_IMAGE]
    before = {"input_ids": ids[:, :1], PLACES_OF_IMAGE: mask.new_ones(len(mask), 1)}
    if "attention_mask" in inputs:
        before["attention_mask"] = inputs["attention_mask"][:, :1]
    longer = {name: torch.cat([one.expand(-1, count), inputs[name]], dim=1) for name, one in before.items()}
    return {**inputs, **longer}


def _placeholder(config: Any, kind: str) -> int | None:
    """The token that stands for an image, a video or a sound; it may be 0."""
    found = (getattr(config, f"{kind}_token_{end}", None) for end in ("id", "index"))
    return next((token for token in found if token is not None), None)


def with_placeholders_counted(subject: ModelContext, inputs: Mapping[str, Any], complaint: str) -> dict[str, Any]:
    """The inputs with as many placeholders as the message of a refused forward says that there are features.

    Raises LookupError where the message does not.
    """
    said = _MISMATCH.search(complaint)
    if said is None or "input_ids" not in inputs:
        raise LookupError
    kind = next((kind for kind, _, _ in _PLACEHOLDERS if kind in said["kind"].lower()), "image")
    token = _placeholder(subject.config, kind)
    ids = inputs["input_ids"]
    more = (int(said["features"]) - int(said["tokens"])) // ids.shape[0]
    if token is None or more <= 0:
        raise LookupError
    made = {**inputs, "input_ids": _append(ids, more, token)}
    if "attention_mask" in made:
        made["attention_mask"] = _append(made["attention_mask"], more, 1)
    if "mm_token_type_ids" in made:
        made["mm_token_type_ids"] = _append(made["mm_token_type_ids"], more, 1)
    return made


def counts_agree(complaint: str) -> bool:
    """Whether a refused forward counts as many placeholders as features: then they differ in width."""
    said = _MISMATCH.search(complaint)
    return said is not None and said["features"] == said["tokens"]


def _features(subject: ModelContext, kind: str, name: str, inputs: Mapping[str, Any]) -> int:
    """How many rows of features the model itself makes of these images, clips or sounds."""
    import torch

    method = getattr(subject.model, f"get_{kind}_features", None)
    if method is None:
        per_item = getattr(subject.config, f"{kind}_seq_length", None) or 1
        return int(per_item) * int(inputs[name].shape[0])
    config, parameters = subject.config, _named_parameters(subject.model, f"get_{kind}_features")
    taken = {one.name: inputs[one.name] for one in parameters if one.name in inputs}
    # transformers 4.53 takes settings of the configuration there
    required = [one.name for one in parameters if one.default is one.empty]
    settings = {key: getattr(config, key) for key in required if hasattr(config, key)}
    try:
        features = run_method_once(subject.model, method, **{**settings, **taken})
    except Exception as error:  # some compare them with the text there
        said = _MISMATCH.search(text_of(error))
        if said is None:
            raise
        return int(said["features"])
    features = getattr(features, "pooler_output", features)
    rows = [leaf for leaf in tree_leaves(features) if isinstance(leaf, torch.Tensor)]
    return sum(leaf.numel() // leaf.shape[-1] for leaf in rows)


def _named_parameters(model: Any, method: str) -> list[inspect.Parameter]:
    """The parameters of a method; with those of the same of a model below, where it passes on what it gets."""
    found: dict[str, inspect.Parameter] = {}
    for module in model.modules():
        parameters = inspect.signature(getattr(module, method)).parameters.values() if hasattr(module, method) else ()
        bundles = [one for one in parameters if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        found = {one.name: one for one in parameters if one not in bundles} | found
        if parameters and not bundles:
            break
    return list(found.values())


def _append(tensor: torch.Tensor, count: int, value: int) -> torch.Tensor:
    import torch

    return torch.cat([tensor, tensor.new_full((tensor.shape[0], count), value)], dim=1)

"""The only place that proposes inputs for any transformers model, from its forward's signature and modalities."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from exportdoctor.targets.image_placeholders import with_placeholders
from exportdoctor.targets.input_layouts import LAYOUTS, SECOND, Layout, Sizes
from exportdoctor.targets.subject import Subject, forward_names

BY_MODALITY: Mapping[str, tuple[str, ...]] = {
    "text": ("input_ids", "attention_mask"),
    "image": ("pixel_values",),
    "video": ("pixel_values_videos",),
    "audio": ("input_features", "input_values"),
    "time": ("past_values",),
}
"""transformers 5 states a model's modalities; the inputs that carry them."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Inputs to try: a layout for each name, and constants passed beside them."""

    layouts: dict[str, Layout]
    constants: dict[str, Any]

    def inputs(self, subject: Subject, sizes: Sizes) -> dict[str, Any]:
        """The keyword arguments at these sizes."""
        made = {name: layout.make(subject, sizes) for name, layout in self.layouts.items()}
        return {**with_placeholders(subject, made), **self.constants}

    @property
    def axes(self) -> dict[str, dict[int, str]]:
        """The named axes of each input."""
        return {name: layout.axes for name, layout in self.layouts.items()}


def choices(subject: Subject) -> Iterator[Choice]:
    """What to try, most complete first: every modality, then the main input alone, then text alone."""
    names = forward_names(subject.model)
    constants = {"use_cache": False} if "use_cache" in names else {}
    seen: list[tuple[str, ...]] = []
    for wanted in (_every_modality(subject), _main_input(subject), ("input_ids", "attention_mask")):
        chosen = tuple(name for name in names if name in wanted and name in LAYOUTS)
        if "input_ids" not in chosen:
            chosen = tuple(name for name in chosen if name != "attention_mask")
        if not chosen or chosen in seen:
            continue
        seen.append(chosen)
        for layouts in product(*(LAYOUTS[name] for name in chosen)):
            yield Choice(layouts=dict(zip(chosen, layouts, strict=True)), constants=constants)


def within_limits(sizes: Sizes, subject: Subject) -> Sizes:
    """The sizes, with sequences no longer than the model has positions for (some reserve two)."""
    limit = getattr(subject.text_config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0 or limit >= SECOND.sequence + 2:
        return sizes
    share = sizes.sequence / (SECOND.sequence + 2)
    return replace(sizes, sequence=max(2, int(limit * share)), decoder_sequence=max(2, int(limit * share / 2)))


def _every_modality(subject: Subject) -> tuple[str, ...]:
    """The main input, what forward requires, and what belongs to the model's modalities."""
    main = _main_input(subject)
    modalities = getattr(subject.model, "input_modalities", None) or ()
    modalities = (modalities,) if isinstance(modalities, str) else tuple(modalities)
    if hasattr(subject.config, "vision_config") and hasattr(subject.config, "text_config"):
        modalities = (*modalities, "image", "text")
    by_modality = [name for modality in modalities for name in BY_MODALITY.get(modality, ())]
    return (*main, *by_modality)


def _main_input(subject: Subject) -> tuple[str, ...]:
    main = getattr(subject.model, "main_input_name", "input_ids")
    mains = (main,) if isinstance(main, str) else tuple(main)
    mask = ("attention_mask",) if "input_ids" in mains else ()
    decoder = ("decoder_input_ids",) if getattr(subject.config, "is_encoder_decoder", False) else ()
    return (*mains, *mask, *decoder, *_required(subject.model))


def _required(model: Any) -> tuple[str, ...]:
    parameters = inspect.signature(model.forward).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in parameters if p.kind in positional and p.default is p.empty)

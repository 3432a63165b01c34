"""Builds a plan: a factory is called, a configuration becomes a model with weights and parts. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

import msgspec
import psutil

from exportdoctor.core.errors import TargetError
from exportdoctor.targets.built import BuiltTarget
from exportdoctor.targets.configuration import ConfigurationPlan
from exportdoctor.targets.eager import blame_target
from exportdoctor.targets.factory.factory_plan import FactoryPlan, build_factory
from exportdoctor.targets.model.checkpoint import find_checkpoint, load_checkpoint
from exportdoctor.targets.model.device import choose_device, choose_dtype, count_parameters, dtype_name
from exportdoctor.targets.model.model_class import dtype_argument, find_model_class, load_config
from exportdoctor.targets.model.weights import build_without_weights, fake_parameters, random_parameters
from exportdoctor.targets.parts.decode import decode_part
from exportdoctor.targets.parts.default_part import can_be_made, default_part
from exportdoctor.targets.parts.model_context import ModelContext, forward_names
from exportdoctor.targets.parts.vision_language import full_part, text_part, video_part, vision_part

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.core.records.target import BuildOptions
    from exportdoctor.targets.built import BuiltPart

Plan = ConfigurationPlan | FactoryPlan
"""A target that was found and checked, not yet built. Plans are torch-free and cheap."""

_MAKERS: dict[str, Callable[[ModelContext], BuiltPart]] = {
    "vision": vision_part,
    "text": text_part,
    "decode": decode_part,
    "full": full_part,
    "video": video_part,
    "default": default_part,
}

_MOST_PARAMETERS_FILLED = 300_000_000
"""Up to so many parameters, random weights replace fake ones where the model does not run without values."""


def build(plan: Plan) -> BuiltTarget:
    """Import torch and build. Raises `TargetError`, with the target's own stack where its code failed."""
    match plan:
        case ConfigurationPlan():
            return _build_configuration(plan)
        case FactoryPlan():
            return build_factory(plan)
        case _:
            assert_never(plan)


def _build_configuration(plan: ConfigurationPlan) -> BuiltTarget:
    """The model at its real size, in eval mode on its device, and how to make each of its parts."""
    subject = _subject(plan, plan.options)
    if subject.is_fake and "default" in plan.available_parts:
        subject = _with_values_if_needed(plan, subject)
    weights = subject.options.weights
    return BuiltTarget(
        model=subject.model,
        parameters=count_parameters(subject.model),
        device=subject.device.type,
        dtype=dtype_name(subject.model),
        weights=weights if find_checkpoint(weights) is None else "checkpoint",
        makers={name: partial(_MAKERS[name], subject) for name in plan.available_parts},
    )


def _with_values_if_needed(plan: ConfigurationPlan, subject: ModelContext) -> ModelContext:
    """The same model with random weights where its default part cannot be made of fake ones, if it is small.

    Routing to experts needs values, and a few operators refuse fake tensors where they take real ones.
    """
    if count_parameters(subject.model) > _MOST_PARAMETERS_FILLED or can_be_made(subject):
        return subject
    return _subject(plan, msgspec.structs.replace(plan.options, weights="random"))


def _subject(plan: ConfigurationPlan, options: BuildOptions) -> ModelContext:
    """The model with its weights, and what makes its floating inputs: fake ones beside fake weights."""
    device = choose_device(options)
    model, fake = _with_weights(load_config(plan.config), options)
    model.eval()
    subject = ModelContext(model=model, options=options, device=device, fake=fake)
    if "use_cache" not in forward_names(model):
        subject.text_config.use_cache = False
    return subject


def _check_memory(model: nn.Module) -> None:
    needed = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    available = psutil.virtual_memory().available
    if needed > available:
        raise TargetError(
            f"Random weights would take {needed / 2**30:,.0f} GiB of memory; {available / 2**30:,.0f} GiB are free",
            hint="Use --weights fake",
        )


def _with_weights(config: Any, options: BuildOptions) -> tuple[nn.Module, Callable[[Any], Any] | None]:
    import torch

    device, dtype = choose_device(options), choose_dtype(options)
    model_class = find_model_class(config)
    folder = find_checkpoint(options.weights)
    if folder is not None:
        return load_checkpoint(model_class, config, folder=folder, dtype=dtype).to(device), None

    def construct() -> Any:
        with blame_target(f"transformers cannot build {model_class.__name__} from this configuration"):
            return model_class._from_config(config, **dtype_argument(dtype or torch.float32))

    model = build_without_weights(construct)
    if options.weights == "random":
        if device.type == "cpu":
            _check_memory(model)
        random_parameters(model, device=device)
        return model, None
    return model, fake_parameters(model, device=device)

"""Builds a plan: a factory is called, a configuration becomes a model with weights and parts. Imports torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, assert_never

import msgspec
import psutil

from exportdoctor.core.errors import MissingPackageError, NoPartError, TargetError, UnreadableCheckpointError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.targets.built import BuiltTarget, Substitution
from exportdoctor.targets.configuration import ConfigurationPlan
from exportdoctor.targets.eager import blame_target, run_once
from exportdoctor.targets.factory.factory_plan import FactoryPlan, build_factory
from exportdoctor.targets.inputs_file import InputsFileError
from exportdoctor.targets.model.checkpoint import find_checkpoint, load_checkpoint, shorten
from exportdoctor.targets.model.device import choose_device, choose_dtype, count_parameters, dtype_name
from exportdoctor.targets.model.experts import (
    experts_implementation,
    other_experts_implementations,
    set_experts_implementation,
)
from exportdoctor.targets.model.model_class import (
    dtype_argument,
    find_model_classes,
    left_out_code,
    load_config,
    quantization_method,
)
from exportdoctor.targets.model.weights import build_without_weights, fake_parameters, random_parameters
from exportdoctor.targets.parts.decode import decode_part, prefill_part
from exportdoctor.targets.parts.default_part import TRY_RANDOM, default_part
from exportdoctor.targets.parts.dummy_inputs import MEDIA
from exportdoctor.targets.parts.given_inputs import given_part
from exportdoctor.targets.parts.model_context import (
    PLACEHOLDER_TOKENS,
    ModelContext,
    forward_names,
    nested_configurations,
)
from exportdoctor.targets.parts.submodule_part import submodule_part
from exportdoctor.targets.parts.vision_language import full_part, text_part, video_part, vision_part
from exportdoctor.targets.recipes import COMPOSITE, VISION_LANGUAGE
from exportdoctor.targets.small_model import plan_small_models

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.core.records.target import BuildOptions
    from exportdoctor.targets.built import BuiltPart

Plan = ConfigurationPlan | FactoryPlan
"""A target that was found and checked, not yet built. Plans are torch-free and cheap."""


def _whole_part(plan: ConfigurationPlan, subject: ModelContext) -> BuiltPart:
    """The whole model in one forward: on the inputs that were given, else on those that are made."""
    if subject.options.inputs:
        return given_part(subject)
    if plan.recipe.name == VISION_LANGUAGE:
        with suppress(Exception) if plan.folder is not None else nullcontext():
            part = full_part(subject)
            if plan.folder is not None:  # what is no preset may want other inputs
                run_once(part.module, (part.args, part.kwargs))
            return part
    return default_part(subject, name=plan.recipe.whole)


_MAKERS: dict[str, Callable[[ModelContext], BuiltPart]] = {
    "vision": vision_part,
    "text": text_part,
    "decode": decode_part,
    "prefill": prefill_part,
    "full": full_part,
    "video": video_part,
}
"""The parts that are made of the whole model, or of an encoder of patches with a grid; any other is a submodule."""
_TOWERS = ("vision", "video", "text")
"""Those that are submodules in most models: where no grid of patches goes in."""

_AS_SMALL_MODEL = "as a small model with random weights"
_SECONDS_FOR_SMALL_MODEL = 10.0
"""For its search, if the others have spent all."""
_MOST_PARAMETERS_FILLED = 300_000_000
"""Up to so many parameters, random weights replace fake ones where the model does not run without values."""
_MOST_OPERATIONS = 500e9
"""Floating-point operations of a forward; on vision towers one core was seen to do 23 to 38 billion a second."""
_MOST_CLASSES_NAMED = 3


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
    subject, substitutions = _subject(plan, plan.options, without_values=plan.without_values)
    given: BuiltPart | TargetError | None = None
    if subject.is_fake and _may_not_run(plan, subject):
        subject, given, more = _runnable_form(plan, subject)
        substitutions = (*substitutions, *more)
    whole = cache(partial(_given_or_made, given, plan, subject))
    weights = subject.options.weights
    return BuiltTarget(
        model=subject.model,
        parameters=count_parameters(subject.model),
        device=subject.device.type,
        dtype=dtype_name(subject.model),
        weights=weights if find_checkpoint(weights) is None else "checkpoint",
        makers={name: partial(_make_part, name, plan, subject, whole) for name in plan.available_parts},
        substitutions=substitutions,
        static=plan.options.static,
    )


def _given_or_made(given: BuiltPart | TargetError | None, plan: ConfigurationPlan, subject: ModelContext) -> BuiltPart:
    if isinstance(given, TargetError):
        raise given
    return given or _whole_part(plan, subject)


def _may_not_run(plan: ConfigurationPlan, subject: ModelContext) -> bool:
    """Whether the whole is to be run before anything is asked: always, but for models of which presets are made."""
    return plan.recipe.name != VISION_LANGUAGE or experts_implementation(subject.model) is not None


def _make_part(name: str, plan: ConfigurationPlan, subject: ModelContext, whole: Callable[[], BuiltPart]) -> BuiltPart:
    """The part: the whole, one made of the whole model, or a submodule as the whole calls it.

    Raises NoPartError where one of several does not run, unless it is a preset's: the others stand without it.
    """
    try:
        return whole() if name == plan.recipe.whole else _part_of_whole(name, plan, subject, whole)
    except TargetError as error:
        if plan.folder is None or isinstance(error, NoPartError) or (name,) == plan.parts:
            raise
        raise NoPartError(error.message, hint=error.hint, stack=error.stack) from error


def _part_of_whole(
    name: str, plan: ConfigurationPlan, subject: ModelContext, whole: Callable[[], BuiltPart]
) -> BuiltPart:
    maker = _MAKERS.get(name)
    if maker is not None and name not in _TOWERS:
        return maker(subject)
    has_grids = plan.recipe.name == VISION_LANGUAGE
    if maker is not None and (has_grids or plan.recipe.name == COMPOSITE):
        with suppress(NoPartError if has_grids and plan.folder is None else Exception):
            part = maker(subject)
            if not has_grids or plan.folder is not None:  # the whole may take no text alone
                run_once(part.module, (part.args, part.kwargs))
            return part
    return submodule_part(subject, name, whole)


def _runnable_form(
    plan: ConfigurationPlan, subject: ModelContext
) -> tuple[ModelContext, BuiltPart | TargetError, tuple[Substitution, ...]]:
    """The model in a form whose default part runs in eager, that part, and what the form is.

    A fake kernel can be stricter than the real one, and some code needs values. In this order: the model itself,
    another implementation of its experts, another dtype, random values, random values on a small model. The first form
    that takes more than text if the model does, else the first that takes something. The model itself, and why, if
    none runs. Each is tried as proposed before any is repaired; where no refusal is of a kind that depends on the
    form, only the small model is tried beside the model itself.
    """
    first: TargetError | None = None
    last: TargetError | None = None
    incomplete: tuple[ModelContext, BuiltPart, tuple[Substitution, ...]] | None = None
    make_again: Callable[[], object] = object
    worth_repairing: set[str] = set()
    for make, what in _forms(plan, subject):
        if incomplete is not None and subject.search.repairs and what not in worth_repairing:
            continue
        try:
            form = make()
            form = form if form is subject else dataclasses.replace(form, search=subject.search)
            part = _whole_part(plan, form)
        except InputsFileError:
            raise  # it has no form that could differ
        except TargetError as error:
            first, last = error if first is None or not what else first, error  # repairs know more
            continue
        because = str(first) if first else incomplete[1].because if incomplete else ""
        found = form, part, (Substitution(what, because),) if what else ()
        if not part.left_out or MEDIA & part.kwargs.keys():
            return found
        if incomplete is None:
            incomplete, make_again = found, make
            worth_repairing = {what, _AS_SMALL_MODEL} if subject.search.form_matters else {what}
    if incomplete is None:
        assert first is not None, "the model itself is a form"
        assert last is not None
        alike = "So does a small model of this configuration with random weights. "
        other = f"As a small model with random weights: {first_line(last)}. "
        hint = (alike if last.message == first.message else other) + first.hint.removeprefix(TRY_RANDOM)
        return subject, TargetError(first.message, hint=hint, stack=first.stack), ()
    if incomplete[0] is subject:
        make_again()  # its experts have been switched since
    return incomplete


def _forms(plan: ConfigurationPlan, subject: ModelContext) -> Iterator[tuple[Callable[[], ModelContext], str]]:
    def with_options(**changes: Any) -> ModelContext:
        return _subject(plan, msgspec.structs.replace(plan.options, **changes))[0]

    for subject.search.repairs in (False, True):
        yield (lambda: subject), ""
        if subject.search.form_matters:
            yield from _other_forms(plan, subject, with_options)
    for small in plan_small_models(plan):
        subject.search.seconds = max(subject.search.seconds, _SECONDS_FOR_SMALL_MODEL)
        yield partial(_small_subject, small), _AS_SMALL_MODEL


def _small_subject(small: ConfigurationPlan) -> ModelContext:
    """The small model with values. Raises TargetError where it is not small: its widths do not divide by its heads."""
    _check_small(small)
    return _subject(small, small.options)[0]


def build_small_model(small: ConfigurationPlan, *, like: nn.Module) -> BuiltTarget:
    """Build one of `plan_small_models`, with the experts implementation of the model `like`, for which it stands.

    Raises TargetError where it cannot be built, or is not small.
    """
    _check_small(small)
    built = build(small)
    if (name := experts_implementation(like)) is not None:
        set_experts_implementation(built.model, name)
    return built


def _check_small(small: ConfigurationPlan) -> None:
    parameters = count_parameters(_subject(small, msgspec.structs.replace(small.options, weights="fake"))[0].model)
    if parameters > _MOST_PARAMETERS_FILLED:
        raise TargetError(f"With few layers it still has {parameters / 1e6:,.0f} million parameters")


def check_operations(small: ConfigurationPlan, part: str) -> None:
    """Raise TargetError where the forward of this part of a small model takes too long for a proof, which needs many.

    It is run on fake tensors; where it needs values nothing is known, and nothing raised.
    """
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with suppress(Exception):
        subject = _subject(small, msgspec.structs.replace(small.options, weights="fake"))[0]
        subject.model.requires_grad_(requires_grad=False)  # else the counter puts hooks on gradients
        entry = _make_part(part, small, subject, cache(partial(_whole_part, small, subject)))
        with counter:
            run_once(entry.module, (entry.args, entry.kwargs))
    if (operations := counter.get_total_flops()) > _MOST_OPERATIONS:
        raise TargetError(f"With few layers its forward still takes {operations / 1e9:,.0f} billion operations")


def _other_forms(
    plan: ConfigurationPlan, subject: ModelContext, with_options: Callable[..., ModelContext]
) -> Iterator[tuple[Callable[[], ModelContext], str]]:
    before = experts_implementation(subject.model)
    for name in other_experts_implementations(subject.model):
        yield partial(_with_experts, subject, name), f"with the experts implementation {name!r}"
    if before is not None:
        _with_experts(subject, before)
    if plan.options.dtype == "auto":
        yield partial(with_options, dtype="bfloat16"), "in bfloat16"
    if count_parameters(subject.model) <= _MOST_PARAMETERS_FILLED:
        yield partial(with_options, weights="random"), "with random weights"


def _with_experts(subject: ModelContext, name: str) -> ModelContext:
    set_experts_implementation(subject.model, name)
    return subject


def _subject(
    plan: ConfigurationPlan, options: BuildOptions, *, without_values: bool = False
) -> tuple[ModelContext, tuple[Substitution, ...]]:
    """The model with its weights, what makes its floating inputs (fake ones beside fake weights), and its class.

    Of the classes that fit the configuration, the first one that can be built. With it, what it is other than asked.
    """
    config = load_config(plan.config)
    first: TargetError | None = None
    others: list[str] = []
    for model_class in find_model_classes(config):
        try:
            subject = _context(model_class, config, options, without_values=without_values)
        except (MissingPackageError, UnreadableCheckpointError):
            raise
        except TargetError as error:
            others += [model_class.__name__] if first is not None else []
            first = first or error
            continue
        return subject, (
            *_left_out(plan, subject),
            *((Substitution(f"as {model_class.__name__}", str(first)),) if first else ()),
        )
    assert first is not None, "find_model_classes yields at least one"
    if not others:
        raise first
    named = ", ".join(others[:_MOST_CLASSES_NAMED]) + (" and others" if len(others) > _MOST_CLASSES_NAMED else "")
    nor = "Nor can it build" if find_checkpoint(options.weights) is None else "Nor does it fit"
    raise TargetError(f"{first.message}. {nor} {named}", hint=first.hint, stack=first.stack) from first


def _left_out(plan: ConfigurationPlan, subject: ModelContext) -> Iterator[Substitution]:
    """What the checkpoint has and the model has not: its own code, its quantization, values without a place."""
    kind = type(subject.model).__name__
    if why := left_out_code(plan.config):
        yield Substitution(f"as transformers' own {kind}", why)
    if names := subject.left_out:
        yield Substitution("without some of the checkpoint's values", f"{kind} has no place for {shorten(names)}")
    if (method := quantization_method(plan.config)) and not getattr(subject.model, "is_quantized", False):
        why = f"quantization ({method}) is applied only where a checkpoint's weights are loaded, with --weights DIR"
        yield Substitution("without its quantization", why)


def _context(model_class: Any, config: Any, options: BuildOptions, *, without_values: bool) -> ModelContext:
    device = choose_device(options)
    model, fake, left_out = _with_weights(model_class, config, options, without_values=without_values)
    model.eval()
    _choose_placeholders(model.config)
    subject = ModelContext(model=model, options=options, device=device, fake=fake, left_out=left_out)
    if "use_cache" not in forward_names(model):
        subject.text_config.use_cache = False
    return subject


def _choose_placeholders(config: Any) -> None:
    """Where a configuration leaves open which token stands for a picture or a sound, the last of the vocabulary."""
    sizes = [size for one in nested_configurations(config) if (size := getattr(one, "vocab_size", None))]
    for name in PLACEHOLDER_TOKENS:
        if sizes and getattr(config, name, 0) is None:
            setattr(config, name, int(sizes[0]) - 1)


def _check_memory(model: nn.Module) -> None:
    needed = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    available = psutil.virtual_memory().available
    if needed > available:
        raise TargetError(
            f"Random weights would take {needed / 2**30:,.0f} GiB of memory; {available / 2**30:,.0f} GiB are free",
            hint="Use --weights fake",
        )


def _with_weights(
    model_class: Any, config: Any, options: BuildOptions, *, without_values: bool
) -> tuple[nn.Module, Callable[[Any], Any] | None, tuple[str, ...]]:
    """The model, what makes fake tensors of real ones, and the names of a checkpoint's values without a place."""
    import torch

    device, dtype = choose_device(options), choose_dtype(options)
    folder = find_checkpoint(options.weights)
    if folder is not None:
        loaded, left_out = load_checkpoint(model_class, config, folder=folder, dtype=dtype)
        return loaded.to(device), None, left_out

    def construct() -> Any:
        with blame_target(f"transformers cannot build {model_class.__name__} from this configuration"):
            return model_class._from_config(config, **dtype_argument(dtype or torch.float32))

    model = build_without_weights(construct)
    if options.weights == "random" and without_values:
        fake_parameters(model, device=device)
        return model, None, ()
    if options.weights == "random":
        if device.type == "cpu":
            _check_memory(model)
        random_parameters(model, device=device)
        return model, None, ()
    return model, fake_parameters(model, device=device), ()

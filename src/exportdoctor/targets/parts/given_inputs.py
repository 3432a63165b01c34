"""The part `default` of a transformers model on the user's inputs: of a function, a .pt or a .safetensors file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.targets.built import BuiltPart, Inputs
from exportdoctor.targets.eager import blame_target
from exportdoctor.targets.factory.factory_answer import check_answer
from exportdoctor.targets.factory.factory_file import import_factory_file
from exportdoctor.targets.inputs_file import KINDS, name_inputs_file, split_inputs
from exportdoctor.targets.sizes.dynamic_shapes import axes_of, dynamic_title
from exportdoctor.targets.sizes.other_sizes import same_shapes

if TYPE_CHECKING:
    from exportdoctor.targets.parts.model_context import ModelContext

_KEYS = {"args", "kwargs", "dynamic_shapes", "more_inputs"}


def given_part(subject: ModelContext) -> BuiltPart:
    """The whole model with the inputs of `options.inputs`, moved to its device."""
    path, function = split_inputs(subject.options.inputs)
    with name_inputs_file():
        answer = check_answer({"module": subject.model, **_read(path, function, subject)}, name=subject.options.inputs)
    shapes = None if subject.options.static else answer.dynamic_shapes
    axes = axes_of(subject.model, (answer.args, answer.kwargs), shapes)
    example: Inputs = (answer.args, answer.kwargs)
    more = tuple(one for one in answer.more_inputs if shapes or same_shapes(one, example))
    with name_inputs_file(), blame_target(f"The inputs of {path.name} cannot be moved to {subject.device}"):
        (args, kwargs), *others = (subject.place_given(one) for one in (example, *more))
    return BuiltPart(
        name="default",
        title=dynamic_title(axes),
        module=subject.model,
        prefix="",
        args=args,
        kwargs=kwargs,
        dynamic_shapes=shapes,
        more_inputs=tuple(others),
        unused=0 if subject.options.static else len(answer.more_inputs) - len(more),
        axes=axes,
    )


def _read(path: Path, function: str, subject: ModelContext) -> dict[str, Any]:
    found = _call(path, function, subject) if path.suffix == ".py" else _load(path)
    if isinstance(found, Mapping):  # as what a tokenizer gives
        found = dict(found)
        return found if found.keys() <= _KEYS and found else {"kwargs": found}
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], tuple) and isinstance(found[1], dict):
        return {"args": found[0], "kwargs": found[1]}
    if isinstance(found, tuple | list):
        return {"args": tuple(found)}
    raise TargetError(
        f"{path.name} holds a {type(found).__name__}",
        hint="Expected a dict of keyword arguments, a tuple of positional ones, or both as (args, kwargs)",
    )


def _call(path: Path, function: str, subject: ModelContext) -> Any:
    with blame_target(f"Importing {path.name} failed"):
        module = import_factory_file(path)
    made = getattr(module, function, None)
    if not callable(made):
        raise UsageError(f"{path.name} defines no function {function!r}", hint=KINDS)
    args, kwargs = _with_model(made, subject.model)
    with blame_target(f"{path.name}:{function}({'model' if args or kwargs else ''}) failed"):
        return made(*args, **kwargs)


def _with_model(function: Callable[..., Any], model: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the function: the model for its first parameter, if that has no default or is called `model`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return (model,), {}
    if any(one.name == "model" and one.kind is one.KEYWORD_ONLY for one in parameters):
        return (), {"model": model}
    takes = parameters and parameters[0].kind not in (parameters[0].KEYWORD_ONLY, parameters[0].VAR_KEYWORD)
    wanted = takes and (parameters[0].default is inspect.Parameter.empty or parameters[0].name == "model")
    return ((model,) if wanted else ()), {}


def _load(path: Path) -> Any:
    import torch

    with blame_target(f"{path.name} cannot be read as inputs"):
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)

"""The part `default` of a transformers model on the user's inputs: of a function, a .pt or a .safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.targets.built import BuiltPart
from exportdoctor.targets.eager import blame_target
from exportdoctor.targets.factory.factory_answer import check_answer
from exportdoctor.targets.factory.factory_file import import_factory_file
from exportdoctor.targets.inputs_file import KINDS, split_inputs
from exportdoctor.targets.sizes.dynamic_shapes import axes_of, dynamic_title

if TYPE_CHECKING:
    from exportdoctor.targets.parts.model_context import ModelContext

_KEYS = {"args", "kwargs", "dynamic_shapes", "more_inputs"}


def given_part(subject: ModelContext) -> BuiltPart:
    """The whole model with the inputs of `options.inputs`, moved to its device."""
    path, function = split_inputs(subject.options.inputs)
    answer = check_answer({"module": subject.model, **_read(path, function, subject)}, name=subject.options.inputs)
    shapes = None if subject.options.static else answer.dynamic_shapes
    axes = axes_of(subject.model, (answer.args, answer.kwargs), shapes)
    return BuiltPart(
        name="default",
        title=dynamic_title(axes),
        module=subject.model,
        prefix="",
        args=subject.place(answer.args),
        kwargs=subject.place(answer.kwargs),
        dynamic_shapes=shapes,
        more_inputs=tuple(subject.place(more) for more in answer.more_inputs) if shapes else (),
        axes=axes,
    )


def _read(path: Path, function: str, subject: ModelContext) -> dict[str, Any]:
    found = _call(path, function, subject) if path.suffix == ".py" else _load(path)
    if isinstance(found, dict):
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
    with blame_target(f"{path.name}:{function}(model) failed"):
        return made(subject.model)


def _load(path: Path) -> Any:
    import torch

    with blame_target(f"{path.name} cannot be read as inputs"):
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)

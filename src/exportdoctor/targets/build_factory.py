"""The only place that calls a user's factory and makes the part `default` of what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import TargetError
from exportdoctor.targets.built import Built, BuiltPart
from exportdoctor.targets.device import choose_device, choose_dtype, count_parameters, dtype_name, move
from exportdoctor.targets.dynamic_axes import dynamic_title
from exportdoctor.targets.factory_answer import FactoryAnswer, check_answer
from exportdoctor.targets.factory_file import import_factory_file
from exportdoctor.targets.given_shapes import axes_of
from exportdoctor.targets.other_sizes import other_sizes, same_shapes
from exportdoctor.targets.own_stack import blame_target

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from exportdoctor.targets.factory_plan import FactoryPlan


def call_factory(file: Path, *, name: str) -> Any:
    """Import the file and call its factory. Raises `TargetError` with the user's own stack."""
    with blame_target(f"Importing {file.name} failed"):
        module = import_factory_file(file)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise TargetError(f"{file.name} has no callable {name!r} once imported", hint="Name a function")
    with blame_target(f"{file.name}:{name}() failed"):
        return factory()


def build_factory(plan: FactoryPlan) -> Built:
    """Call, check and move. Device and dtype stay as built unless they were asked for."""
    answer = check_answer(plan.call(), name=plan.title)
    device = None if plan.options.device == "auto" else choose_device(plan.options)
    answer = _moved(answer, device=device, dtype=choose_dtype(plan.options))
    return Built(
        model=answer.module,
        parameters=count_parameters(answer.module),
        device=_device_of(answer),
        dtype=dtype_name(answer.module),
        weights="as built",
        makers={"default": lambda: _part(answer, static=plan.options.static)},
    )


def _part(answer: FactoryAnswer, *, static: bool) -> BuiltPart:
    shapes = None if static else _plain_shapes(answer)
    inputs = (answer.args, answer.kwargs)
    axes = axes_of(answer.module, inputs, shapes)
    more = tuple(given for given in answer.more_inputs if shapes or same_shapes(given, inputs))
    if shapes and not more:
        more = other_sizes(answer.module, inputs, shapes)
    return BuiltPart(
        name="default",
        title=dynamic_title(axes),
        module=answer.module,
        prefix="",
        args=answer.args,
        kwargs=answer.kwargs,
        dynamic_shapes=shapes,
        more_inputs=more,
        axes=axes,
    )


def _plain_shapes(answer: FactoryAnswer) -> Any:
    """The dynamic shapes as dicts and tuples; torch's own collections of them know how to become that."""
    shapes = answer.dynamic_shapes
    if not hasattr(shapes, "dynamic_shapes"):
        return shapes
    with blame_target("The factory's dynamic_shapes do not fit its inputs"):
        return shapes.dynamic_shapes(answer.module, answer.args, answer.kwargs)


def _moved(answer: FactoryAnswer, *, device: torch.device | None, dtype: torch.dtype | None) -> FactoryAnswer:
    if device is None and dtype is None:
        return answer
    args, kwargs, more = move((answer.args, answer.kwargs, answer.more_inputs), device=device, dtype=dtype)
    return FactoryAnswer(
        module=answer.module.to(device=device, dtype=dtype),
        args=args,
        kwargs=kwargs,
        dynamic_shapes=answer.dynamic_shapes,
        more_inputs=more,
    )


def _device_of(answer: FactoryAnswer) -> str:
    """Where the module is; one without parameters is where its inputs are."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [*answer.module.parameters(), *answer.module.buffers(), *tree_leaves((answer.args, answer.kwargs))]
    found = [tensor.device.type for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return found[0] if found else "cpu"

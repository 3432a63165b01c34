"""Targets that are a user's own module: from `file.py:factory`, or given in Python. They have one part, `default`."""

from __future__ import annotations

import inspect
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.targets.built import BuiltPart, BuiltTarget
from exportdoctor.targets.eager import blame_target
from exportdoctor.targets.factory.factory_answer import FactoryAnswer, check_answer, check_call
from exportdoctor.targets.factory.factory_file import check_factory, import_factory_file, source_hashes
from exportdoctor.targets.model.checkpoint import NO_CHECKPOINT
from exportdoctor.targets.model.device import choose_device, choose_dtype, count_parameters, dtype_name, move
from exportdoctor.targets.model.weights import SEED
from exportdoctor.targets.recipes import choose_parts
from exportdoctor.targets.sizes.dynamic_shapes import axes_of, dynamic_title
from exportdoctor.targets.sizes.other_sizes import other_sizes, same_shapes
from exportdoctor.torch_internals.trees import tree_leaves

if TYPE_CHECKING:
    import torch
    from torch import nn

    from exportdoctor.core.records.target import TargetRef
    from exportdoctor.targets.built import Inputs

_PARTS = ("default",)


@dataclass(frozen=True, kw_only=True)
class FactoryPlan:
    """A callable that returns a module and its inputs. `file`, a whole path, and `sources` are empty for a module made
    in this process."""

    ref: str
    title: str
    options: BuildOptions
    call: Callable[[], Any]
    parts: tuple[str, ...] = _PARTS
    available_parts: tuple[str, ...] = _PARTS
    file: str = ""
    sources: dict[str, str] = field(default_factory=dict)

    def identity(self) -> dict[str, object]:
        """The file, the name, the options and the hashes of the file and of the neighbours it imports. A copy elsewhere
        is another target: it may read what lies beside it."""
        return {
            "factory": self.title,
            "file": self.file,
            "sources": self.sources,
            "parts": list(self.parts),
            "options": msgspec.to_builtins(self.options),
        }


def factory_plan(target: TargetRef, *, file: Path, name: str) -> FactoryPlan:
    """Plan `file.py:factory`. The file is read, not run."""
    check_factory(file, name=name)
    _check_options(target.options)

    return FactoryPlan(
        ref=target.ref,
        title=f"{file.name}:{name}",
        options=target.options,
        call=partial(_call_factory, file, name=name),
        parts=choose_parts(target.parts, available=_PARTS, default=_PARTS),
        file=os.path.abspath(file),
        sources=source_hashes(file),
    )


def plan_for_module(
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    more_inputs: Sequence[Inputs] = (),
    options: BuildOptions | None = None,
) -> FactoryPlan:
    """Plan a module that exists already, in eval or training mode as it is.

    `more_inputs` are `(args, kwargs)` at other sizes, of the same structure. Raises UsageError where there is no
    module, a tensor in place of the tuple of arguments, or keyword arguments that are no mapping.
    """
    check_call(module, args, kwargs)
    answer = {
        "module": module,
        "args": tuple(args),
        "kwargs": dict(kwargs or {}),
        "dynamic_shapes": dynamic_shapes,
        "more_inputs": tuple(more_inputs),
    }
    name = type(module).__name__
    return FactoryPlan(ref=name, title=name, options=options or BuildOptions(), call=lambda: answer)


def _check_options(options: BuildOptions) -> None:
    if options.weights not in NO_CHECKPOINT:
        raise UsageError("A factory sets its own weights", hint="Load them in the factory")
    if options.inputs:
        raise UsageError("A factory sets its own inputs", hint="Return them from the factory")
    if options.image_size is not None:
        raise UsageError("A factory sets its own inputs", hint="Choose the image size in the factory")


def build_factory(plan: FactoryPlan) -> BuiltTarget:
    """Call the factory, check what it returns and move it; device and dtype change only if the options name them."""
    answer = plan.call()
    with blame_target(f"What {plan.title} returned cannot be read"):
        answer = check_answer(answer, name=plan.title)
    device = None if plan.options.device == "auto" else choose_device(plan.options)
    answer = _move(answer, device=device, dtype=choose_dtype(plan.options))
    return BuiltTarget(
        model=answer.module,
        parameters=count_parameters(answer.module),
        device=_device_of(answer),
        dtype=dtype_name(answer.module),
        weights="as built",
        makers={"default": lambda: _part(answer, static=plan.options.static)},
    )


def _call_factory(file: Path, *, name: str) -> Any:
    """Import the file and call its factory, with the generators of random numbers seeded: weights that nobody loads are
    the same each time. Raises `TargetError` with the user's own stack."""
    from torch import nn

    _seed_generators()
    with blame_target(f"Importing {file.name} failed"):
        module = import_factory_file(file)
    factory: Any = module
    for part in name.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        raise TargetError(f"{file.name} defines no callable {name!r}", hint="Name a function")
    if isinstance(factory, nn.Module):
        raise TargetError(f"{file.name}:{name} is a module", hint="Name a function that returns it with its inputs")
    _refuse_arguments(factory, f"{file.name}:{name}")
    with blame_target(f"{file.name}:{name}() failed"):
        return factory()


def _seed_generators() -> None:
    """Seed what a factory may draw from without a generator of its own."""
    import torch

    torch.manual_seed(SEED)
    random.seed(SEED)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(SEED)


def _refuse_arguments(factory: Callable[..., Any], what: str) -> None:
    """Raise where a factory cannot be called without arguments, by its signature."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # it has none: a call shows what it takes
    try:
        signature.bind()
    except TypeError as error:
        hint = "A factory is called without arguments: give them defaults"
        raise TargetError(f"{what} cannot be called: {error}", hint=hint) from None


def _part(answer: FactoryAnswer, *, static: bool) -> BuiltPart:
    shapes = None if static else _plain_shapes(answer)
    inputs = (answer.args, answer.kwargs)
    axes = axes_of(answer.module, inputs, shapes)
    more = tuple(given for given in answer.more_inputs if shapes or same_shapes(given, inputs))
    unused = 0 if static else len(answer.more_inputs) - len(more)
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
        unused=unused,
    )


def _plain_shapes(answer: FactoryAnswer) -> Any:
    """The dynamic shapes as dicts and tuples; torch's own collections of them know how to become that."""
    shapes = answer.dynamic_shapes
    if not hasattr(shapes, "dynamic_shapes"):
        return shapes
    with blame_target("The factory's dynamic_shapes do not fit its inputs"):
        return shapes.dynamic_shapes(answer.module, answer.args, answer.kwargs)


def _move(answer: FactoryAnswer, *, device: torch.device | None, dtype: torch.dtype | None) -> FactoryAnswer:
    if device is None and dtype is None:
        return answer
    args, kwargs, more = move((answer.args, answer.kwargs, answer.more_inputs), device=device, dtype=dtype)
    module = answer.module.to(device=device, dtype=dtype)
    return replace(answer, module=module, args=args, kwargs=kwargs, more_inputs=more)


def _device_of(answer: FactoryAnswer) -> str:
    """Where the module is; one without parameters is where its inputs are."""
    import torch

    tensors = [*answer.module.parameters(), *answer.module.buffers(), *tree_leaves((answer.args, answer.kwargs))]
    found = [tensor.device.type for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return found[0] if found else "cpu"

"""The input sets on which a file is verified: the example, other sizes, a padded batch; eager accepts each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import torch

from exportdoctor.core.axis_names import is_derived, leading_names
from exportdoctor.core.protocol.export import OTHER_INPUTS_STEP
from exportdoctor.core.records.target import TargetRef
from exportdoctor.targets import BuiltPart, Plan, build, resolve
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import run_calls, run_example, runs_in_eager
from exportdoctor.targets.input_objects import flatten_inputs
from exportdoctor.targets.sizes.dynamic_shapes import map_inputs
from exportdoctor.targets.sizes.image_sizes import image_unit
from exportdoctor.targets.sizes.other_sizes import other_sizes, same_shapes
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.pytree_registry import is_registered
from exportdoctor.torch_internals.trees import tree_flatten, tree_map
from exportdoctor.worker.prove.cure_inputs import other_calls, redraw_values, values_of
from exportdoctor.worker.prove.drawn_inputs import SetDrawer
from exportdoctor.worker.prove.input_set import InputSet, argument_names, disturbed_outputs
from exportdoctor.worker.prove.recorded_gradients import answered_with_gradients, asks_for_gradients

_SEED = 41
_SECONDS = 60.0
"""For drawing sets; at least one set of each real model's known sizes runs in any case."""


def input_sets(
    part: BuiltPart, plan: Plan, *, seconds: float = _SECONDS, doing: Callable[[str], None] = lambda what: None
) -> tuple[InputSet, ...]:
    """The example first. Raises TargetError where eager refuses it; what eager refuses of the others is left out.

    `doing` hears of the others, once the example has run.
    """
    example = (part.args, part.kwargs)
    found = [example, *part.more_inputs]
    with part.prepare():
        results = run_example(part.module, part.name, example)
        doing(OTHER_INPUTS_STEP)
        if part.dynamic_shapes is not None:
            more = [_another_image(part, plan), *_larger_inputs(part)]
            found += [inputs for inputs in more if inputs is not None and runs_in_eager(part.module, inputs)]
        fresh = [inputs for place, inputs in enumerate(found) if not any(inputs is one for one in found[:place])]
        first = InputSet(
            title=sizes_title(part, example),
            kind="example",
            calls=(example,),
            results=results,
            same=True,
            disturbed=disturbed_outputs(part.module, results[0].output, lambda: values_of(example)),
            names=argument_names(part.module, example),
        )
        known = [first, *(_with_answer(part, inputs, first) for inputs in fresh[1:])]
        values = redraw_values(example)
        other = values if values is not None and runs_in_eager(part.module, values) else None
        known += other_calls(part.module, first, other, fresh[1:])
        drawer = SetDrawer(module=part.module, known=fresh, first=first, shapes=part.dynamic_shapes, seconds=seconds)
        sets = (*(replace(one, mask_path=drawer.mask_path) for one in known), *drawer.draw())
        if not asks_for_gradients(part.module, example):
            return sets
        return tuple(answered_with_gradients(part.module, one) or one for one in sets)


def _with_answer(part: BuiltPart, inputs: Inputs, first: InputSet) -> InputSet:
    results, same = run_calls(part.module, [inputs]), same_shapes(inputs, first.inputs)
    return replace(first, title=sizes_title(part, inputs), kind="sizes", calls=(inputs,), results=results, same=same)


def sizes_title(part: BuiltPart, inputs: Inputs) -> str:
    """The sizes of the dynamic axes by name, `batch 2, sequence 13`; without any, the shapes of the inputs."""
    sizes = _named_sizes(part, inputs)
    found = {axis: sizes[places[0]] for axis, places in part.axes.items() if places[0] in sizes}
    if found:
        return ", ".join(f"{axis} {found[axis]}" for axis in leading_names(found))
    shapes = [tuple(leaf.shape) for leaf in flatten_inputs(inputs)[0] if isinstance(leaf, torch.Tensor)]
    return ", ".join(" x ".join(map(str, shape)) or "scalar" for shape in shapes[:4])


def _named_sizes(part: BuiltPart, inputs: Inputs) -> dict[str, int]:
    """The size at each `name[dimension]`, `name[child][dimension]` and whole number, by the argument's name."""
    found: dict[str, int] = {}

    def visit(path: str, leaf: Any, _: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            found.update({f"{path}[{dimension}]": int(size) for dimension, size in enumerate(leaf.shape)})
        elif isinstance(leaf, int):
            found[path] = leaf
        return leaf

    map_inputs(visit, part.module, inputs, part.dynamic_shapes)
    for name, value in inputs[1].items():
        if is_registered(type(value)):  # its tensors are numbered through, whatever holds them
            for index, leaf in enumerate(tree_flatten(value)[0]):
                visit(f"{name}[{index}]", leaf, None)
    return found


def _another_image(part: BuiltPart, plan: Plan) -> Inputs | None:
    """The same part's inputs for an image of two thirds the height and half the width, in whole patches."""
    size, config = plan.options.image_size, getattr(plan, "config", None)
    pictures = [
        value for value in part.kwargs.values() if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    if size is None or config is None or not pictures or part.name not in plan.available_parts:
        return None
    unit = image_unit(config)
    smaller = (max(unit, size[0] * 2 // 3 // unit * unit), max(unit, size[1] // 2 // unit * unit))
    options = msgspec.structs.replace(plan.options, image_size=smaller, weights="fake", device="cpu")
    other = build(resolve(TargetRef(ref=plan.ref, parts=(part.name,), options=options))).part(part.name)
    inputs = (other.args, other.kwargs)
    if other.kwargs.keys() != part.kwargs.keys():
        return None
    return None if same_shapes(inputs, (part.args, part.kwargs)) else _with_values(inputs, part)


def _with_values(inputs: Inputs, part: BuiltPart) -> Inputs:
    """The inputs with random values in place of fake tensors, on the device of the part."""
    generator = torch.Generator().manual_seed(_SEED)
    device = next((leaf.device for leaf in tree_flatten(part.kwargs)[0] if isinstance(leaf, torch.Tensor)), None)

    def draw(leaf: Any) -> Any:
        if is_fake(leaf):
            leaf = torch.randn(leaf.shape, generator=generator).to(leaf.dtype)
        return leaf.to(device) if isinstance(leaf, torch.Tensor) and device is not None else leaf

    made: Inputs = tree_map(draw, inputs)
    return made


def _larger_inputs(part: BuiltPart) -> Iterator[Inputs]:
    """Inputs of larger sizes than the last set; none if a dynamic size follows from another."""
    if any(is_derived(axis) for axis in part.axes):
        return
    last = part.more_inputs[-1] if part.more_inputs else (part.args, part.kwargs)
    yield from other_sizes(part.module, last, part.dynamic_shapes)

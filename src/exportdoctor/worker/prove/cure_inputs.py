"""The input sets on which shims must give eager's numbers: first those that are known, then those that are drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from exportdoctor.core.failure.messages import ONE_FOR_SEVERAL
from exportdoctor.core.records.outcome import SetKind
from exportdoctor.shims import ExportCall, Inputs
from exportdoctor.targets.eager import copy_inputs, run_calls
from exportdoctor.targets.input_objects import flatten_inputs, separate_tensors
from exportdoctor.targets.sizes.other_sizes import same_shapes
from exportdoctor.worker.prove.drawn_inputs import SetDrawer
from exportdoctor.worker.prove.drawn_values import draw_like, write
from exportdoctor.worker.prove.input_meaning import meaning_of
from exportdoctor.worker.prove.input_set import (
    InputSet,
    argument_names,
    disturbed_outputs,
    run_in_eager,
    sizes_of,
)
from exportdoctor.worker.prove.object_walk import equal_inputs, is_whole, map_tensors, tensors_by_path

_SEED, _DRAWS = 20, 8


def cure_inputs(call: ExportCall) -> Iterator[InputSet]:
    """The example first, then other sizes, other values, the example three times and with others in between.

    Raises what eager raises for the example and for the other sizes; what it refuses of the rest is left out.
    """
    example = (call.args, call.kwargs)
    results = run_calls(call.module, [example], notes_state=True)
    title = sizes_of(example)
    first = InputSet(
        title=title,
        kind="example",
        calls=(example,),
        results=results,
        same=True,
        disturbed=disturbed_outputs(call.module, results[0].output, lambda: values_of(example)),
        names=argument_names(call.module, example),
    )
    yield first
    for other in call.more_inputs:
        results, same = run_calls(call.module, [other]), same_shapes(other, example)
        yield replace(first, title=sizes_of(other), kind="sizes", calls=(other,), results=results, same=same)
    values = redraw_values(example)
    if values is not None and (found := run_in_eager(call.module, [values])):
        yield replace(first, title=f"{title}, other values", kind="values", calls=(values,), results=found)
    else:
        values = None
    yield from other_calls(call.module, first, values, call.more_inputs)


def values_of(example: Inputs) -> list[Inputs]:
    """The example with other floating values, three times; itself if it has none."""
    found = [redraw_values(example, seed=seed) for seed in range(3)]
    return [one for one in found if one is not None] or [example]


def other_calls(
    module: torch.nn.Module, first: InputSet, values: Inputs | None, known: Sequence[Inputs]
) -> Iterator[InputSet]:
    """The example at other strides; three times in a row; before and after other `values`, before and after the largest
    of the `known` sets, and before and after one with other whole numbers. State that a call leaves shows there, also
    where only a call of more than the example leaves some. What was made up a program may refuse."""
    example = first.inputs
    layout, resampled, apart = change_layout(example), resample_numbers(example), _take_apart(example)
    largest = max((one for one in known if not same_shapes(one, example)), key=_elements, default=None)
    other = values or largest or next(iter(known), None)
    sizes = largest if other is not largest else None
    sequences: list[tuple[SetKind, str, tuple[Inputs | None, ...], bool]] = [
        ("layout", "another memory layout", (layout,), True),
        ("values", ONE_FOR_SEVERAL, (apart,), False),
        ("called_again", "three times in a row", (example,) * 3, False),
        ("others_between", "before and after another set", (example, other, example), False),
        ("others_between", "before and after other sizes", (example, sizes, example), False),
        ("others_between", "before and after other whole numbers", (example, resampled, example), True),
    ]
    for kind, when, made, made_up in sequences:
        calls = tuple(one for one in made if one is not None)
        if len(calls) == len(made) and (results := run_in_eager(module, calls, notes_state=True)):
            title = f"{first.title}, {when}"
            yield replace(first, title=title, kind=kind, calls=calls, results=results, made_up=made_up)


def drawer_for(call: ExportCall, first: InputSet, *, sizes: bool = True) -> SetDrawer:
    """What draws further sets for this call; `first` is the example. Without `sizes` none of them is a change of the
    known inputs of other sizes."""
    known = [(call.args, call.kwargs), *(call.more_inputs if sizes else ())]
    return SetDrawer(module=call.module, known=known, shapes=call.dynamic_shapes, first=first)


def _take_apart(inputs: Inputs) -> Inputs | None:
    """Inputs with other values, in which no tensor stands twice; None where none does in these."""
    example = copy_inputs(inputs)
    apart = separate_tensors(example)
    if apart is None:
        return None
    before, (after, layout) = flatten_inputs(example)[0], flatten_inputs(apart)
    pairs = zip(before, after, strict=True)
    turned = [new.flip(-1) if new is not old and new.dim() and is_whole(new) else new for old, new in pairs]
    made: Inputs = layout.unflatten(turned)
    return redraw_values(made) or made


def change_layout(inputs: Inputs) -> Inputs | None:
    """The same values as slices of longer rows, of a single row every second element; contiguous where they are not.

    None where no tensor has several elements.
    """
    if not any(map(_has_elements, tensors_by_path(inputs).values())):
        return None

    def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
        if not _has_elements(leaf):
            return leaf
        if not leaf.is_contiguous():
            return leaf.clone(memory_format=torch.contiguous_format)
        longer = leaf.new_zeros((*leaf.shape[:-1], 2 * leaf.shape[-1]))
        is_one_row = leaf.numel() == leaf.shape[-1]
        return (longer[..., ::2] if is_one_row else longer[..., : leaf.shape[-1]]).copy_(leaf)

    made: Inputs = map_tensors(copy_inputs(inputs), change)
    return made


def _elements(inputs: Inputs) -> int:
    return sum(leaf.numel() for leaf in tensors_by_path(inputs).values())


def _has_elements(leaf: torch.Tensor) -> bool:
    """Whether it is a plain dense tensor of several elements."""
    is_dense = type(leaf) is torch.Tensor and leaf.layout == torch.strided and not leaf.is_nested
    return is_dense and not leaf.is_quantized and leaf.dim() > 0 and leaf.numel() > 1


def resample_numbers(inputs: Inputs) -> Inputs | None:
    """The inputs with whole numbers drawn from those of the same row, not each as often; None if that changes nothing.

    Those that must be in order, or have a sum or a product, stay as they are.
    """
    generator, everything = torch.Generator().manual_seed(_SEED), list(tensors_by_path(inputs).values())

    def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
        if not _has_elements(leaf) or not is_whole(leaf) or leaf.dtype == torch.bool:
            return leaf
        if meaning_of(leaf, everything, bound=None).meaning != "number":
            return leaf
        wide = leaf.to(torch.int64)  # uint16 and its like have hardly any operators
        for _ in range(_DRAWS):
            drawn = wide.gather(-1, torch.randint(leaf.shape[-1], leaf.shape, generator=generator).to(leaf.device))
            if not torch.equal(drawn.sort(-1).values, wide.sort(-1).values):  # what counts them sees it
                break
        return drawn.to(leaf.dtype)

    changed: Inputs = map_tensors(copy_inputs(inputs), change)
    return None if equal_inputs(changed, inputs) else changed


def redraw_values(inputs: Inputs, *, seed: int = _SEED) -> Inputs | None:
    """The inputs with random floating values of their own mean and spread; None if that changes nothing."""
    chance = random.Random(seed)

    def change(path: str, leaf: torch.Tensor) -> torch.Tensor:
        return write(leaf, lambda seen: draw_like(seen, chance)) if leaf.is_floating_point() and leaf.numel() else leaf

    changed: Inputs = map_tensors(copy_inputs(inputs), change)
    return None if equal_inputs(changed, inputs) else changed

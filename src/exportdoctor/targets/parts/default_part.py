"""The part `default` of a transformers model: one forward, with inputs that it accepts.

Each proposal of inputs is run in eager once, and an axis is dynamic only where a second size of it ran, too.
"""

from __future__ import annotations

import inspect
import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import TargetError
from exportdoctor.core.exception_text import text_of
from exportdoctor.core.failure.messages import first_line
from exportdoctor.targets.eager import own_stack, run_once
from exportdoctor.targets.parts.documented_inputs import (
    TensorSpec,
    documented_inputs,
    guessed_input,
    processor_inputs,
)
from exportdoctor.targets.parts.dummy_inputs import (
    MEDIA,
    InputProposal,
    UnknownSizeError,
    constants_for,
    counts_agree,
    propose_inputs,
    required_inputs,
    with_placeholders_counted,
    within_limits,
)
from exportdoctor.targets.parts.input_layouts import FIRST, SECOND, ExampleSizes, Layout
from exportdoctor.targets.parts.model_context import assemble, forward_names
from exportdoctor.targets.parts.processed_inputs import packages_for_processors
from exportdoctor.targets.parts.repair_inputs import repair_inputs
from exportdoctor.targets.parts.vision_language import vision_part

if TYPE_CHECKING:
    from exportdoctor.targets.built import BuiltPart
    from exportdoctor.targets.parts.model_context import ModelContext
    from exportdoctor.targets.sizes.dynamic_shapes import Axes

_LIST = re.compile(r"(?:typing\.)?(?:list|tuple|List|Tuple|Sequence)\[(?:torch\.)?\w*Tensor\b")
_SECONDS_FOR_MEDIA = 12.0
TRY_RANDOM = "Try --weights random (not every operator takes fake weights). "
_ONE = replace(FIRST, batch=1)
"""For models that refuse a batch, such as classifiers without a padding token."""


def default_part(subject: ModelContext, *, name: str = "default") -> BuiltPart:
    """The model with the first proposal of inputs that eager accepts, repaired by search where it refuses all.

    Raises `TargetError` if none is found.
    """
    if "grid_thw" in forward_names(subject.model):
        with suppress(Exception):
            part = vision_part(subject, name=name)
            run_once(part.module, (part.args, part.kwargs))
            return part
    search = subject.search
    search.first = None
    for proposal, sizes in _proposals(subject):
        try:
            part = _part(subject, name, proposal, sizes, _run(subject, proposal, sizes))
        except UnknownSizeError:
            continue
        except Exception as error:
            search.note(error)
            continue
        left_out = frozenset(proposal.left_out)
        why = _complaint(search.first) if search.first else ""
        if search.repairs and left_out & MEDIA and not part.kwargs.keys() & MEDIA and not counts_agree(why):
            more = _repaired_part(subject, name, needed=left_out, seconds=_SECONDS_FOR_MEDIA)
            if more is not None:
                return more
        how = _without_processors(subject)
        because = f"{why} ({how})" if why and how else why
        return replace(part, left_out=proposal.left_out, because=because)
    repaired = _repaired_part(subject, name) if search.repairs else None
    if repaired is None:
        raise _no_inputs(subject)
    return repaired


def _repaired_part(
    subject: ModelContext, name: str, *, needed: frozenset[str] = frozenset(), seconds: float = math.inf
) -> BuiltPart | None:
    """The model on repaired inputs, some of the `needed` ones among them; None where none is found.

    What eager refuses is noted.
    """
    search, begun = subject.search, time.thread_time()

    def run(specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
        if needed and not needed & specs.keys():
            raise UnknownSizeError
        try:
            return _run(subject, _proposal(subject, specs), FIRST)
        except Exception as error:
            search.note(error)
            raise

    repaired = repair_inputs(subject, _starts(subject), run, seconds=min(seconds, search.seconds))
    search.seconds -= time.thread_time() - begun
    if repaired is None:
        return None
    proposal = _proposal(subject, repaired)
    return _part(subject, name, proposal, FIRST, run(repaired))


def _part(
    subject: ModelContext, name: str, proposal: InputProposal, sizes: ExampleSizes, inputs: dict[str, Any]
) -> BuiltPart:
    axes, other = _second_size(subject, proposal, sizes)
    listed = {key: [layout] if isinstance(inputs[key], list) else layout for key, layout in axes.items()}
    told = {*inputs, *proposal.left_out}
    not_made = tuple(one for one in processor_inputs(subject) if one not in told)
    return replace(assemble(name, subject, inputs=inputs, other_inputs=other, axes=listed), not_made=not_made)


def _proposals(subject: ModelContext) -> Iterator[tuple[InputProposal, ExampleSizes]]:
    for sizes in (FIRST, _ONE):
        yield from ((proposal, sizes) for proposal in propose_inputs(subject))


def _proposal(subject: ModelContext, specs: Mapping[str, TensorSpec]) -> InputProposal:
    layouts = {name: spec.layout() for name, spec in specs.items()}
    return InputProposal(layouts=layouts, constants=constants_for(subject))


def _starts(subject: ModelContext) -> Iterator[Mapping[str, TensorSpec]]:
    """What a repair starts from: the proposals, what the documentation says of the same inputs, and single inputs."""
    documented = documented_inputs(subject)
    for proposal in propose_inputs(subject):
        known = {name: _spec_of(subject, name, layout) for name, layout in proposal.layouts.items()}
        if all(known.values()):
            yield {name: spec for name, spec in known.items() if spec}
        yield {name: documented[name] for name in known if name in documented}
    required = {name: documented.get(name) or guessed_input(subject, name) for name in required_inputs(subject.model)}
    if required:
        yield required
    yield from ({name: spec} for name, spec in documented.items() if spec.kind == "float")


def _spec_of(subject: ModelContext, name: str, layout: Layout) -> TensorSpec | None:
    """What the layout makes, None where it cannot be made of this configuration."""
    with suppress(Exception):
        made = layout.make(subject, within_limits(FIRST, subject))
        dims = tuple(layout.axes.get(place, size) for place, size in enumerate(made.shape))
        if made.is_floating_point():
            return TensorSpec(dims=dims, kind="float")
        if "mask" in name:
            return TensorSpec(dims=dims, kind="mask")
        if name.endswith("grid_thw"):
            return TensorSpec(dims=dims, kind="grid")
        tokens = name.endswith("input_ids")  # other numbers may be sizes, such as those of a grid
        return TensorSpec(dims=dims, kind="integer", below=subject.vocabulary_size if tokens else int(made.max()) + 1)
    return None


def _run(subject: ModelContext, proposal: InputProposal, sizes: ExampleSizes) -> dict[str, Any]:
    """The inputs at these sizes, after eager has taken them. Raises what eager raises."""
    made = proposal.inputs(subject, within_limits(sizes, subject))
    try:
        return _take(subject, made)
    except Exception as error:
        try:
            counted = with_placeholders_counted(subject, made, text_of(error))
        except LookupError:
            raise error from None
        return _take(subject, counted)


def _take(subject: ModelContext, made: dict[str, Any]) -> dict[str, Any]:
    """The inputs, in lists where forward asks for lists, after eager has taken them."""
    inputs = {name: [value] if _takes_list(subject, name) else value for name, value in made.items()}
    run_once(subject.model, ((), inputs))
    return inputs


def _takes_list(subject: ModelContext, name: str) -> bool:
    """Whether forward's annotation asks for a list of tensors: a tensor there would be taken for one of its rows."""
    parameter = inspect.signature(subject.model.forward).parameters.get(name)
    return parameter is not None and _LIST.match(str(parameter.annotation)) is not None


def _second_size(subject: ModelContext, proposal: InputProposal, first: ExampleSizes) -> tuple[Axes, dict[str, Any]]:
    """The axes that eager accepts at another size, and the inputs that show it; `{}` and `{}` for none."""
    for sizes, names in _other_sizes(first):
        axes = {
            name: {dimension: axis for dimension, axis in layout.items() if axis in names}
            for name, layout in proposal.axes.items()
        }
        if not any(axes.values()):
            continue
        with suppress(Exception):
            inputs = _run(subject, proposal, sizes)
            return {name: layout for name, layout in axes.items() if layout}, inputs
    return {}, {}


def _other_sizes(first: ExampleSizes) -> Iterator[tuple[ExampleSizes, frozenset[str]]]:
    """Everything larger; the batch alone; all but the batch."""
    lengths = frozenset({"sequence", "decoder sequence", "samples", "frames", "patches", "prompts", "points"})
    if first.batch > 1:
        yield SECOND, lengths | {"batch"}
        yield replace(first, batch=SECOND.batch), frozenset({"batch"})
    yield replace(SECOND, batch=first.batch), lengths


def _complaint(error: Exception) -> str:
    """The exception in one line; where it counts as many of both, what that means."""
    line = f"{type(error).__name__}: {first_line(error)}"
    widths = "as many of both, so they differ in width: settings of its configurations do not fit each other"
    return f"{line} ({widths})" if counts_agree(line) else line


def _no_inputs(subject: ModelContext) -> TargetError:
    """The error where no proposal ran: the first failure, which is that of the most complete inputs."""
    what = type(subject.model).__name__
    first = subject.search.first
    if first is None:
        return TargetError(f"No inputs are known for {what}", hint="Write a factory: file.py:factory")
    random = TRY_RANDOM if subject.is_fake else ""
    how = _without_processors(subject)
    hint = f"{random}{f'The inputs were {how}. ' if how else ''}Write a factory with its inputs: file.py:factory"
    return TargetError(
        f"The eager forward of {what} fails on the inputs made for it: {_complaint(first)}",
        hint=hint,
        stack=own_stack(first),
    )


def _without_processors(subject: ModelContext) -> str:
    """That the model's own processors made no inputs for want of packages; empty where none are missing."""
    command = packages_for_processors(subject)
    return f"made without the model's own processors, which need: {command}" if command else ""

"""The part `default` of a transformers model: one forward, with inputs that it accepts.

Each proposal of inputs is run in eager once, and an axis is dynamic only where a second size of it ran, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import TargetError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.targets.eager import own_stack, run_once
from exportdoctor.targets.parts.dummy_inputs import InputProposal, propose_inputs, within_limits
from exportdoctor.targets.parts.input_layouts import FIRST, SECOND, ExampleSizes
from exportdoctor.targets.parts.model_context import assemble

if TYPE_CHECKING:
    from exportdoctor.targets.built import BuiltPart
    from exportdoctor.targets.parts.model_context import ModelContext
    from exportdoctor.targets.sizes.dynamic_shapes import Axes

_ONE = replace(FIRST, batch=1)
"""For models that refuse a batch, such as classifiers without a padding token."""


def default_part(subject: ModelContext) -> BuiltPart:
    """The model with the first proposal of inputs that eager accepts. Raises `TargetError` if it accepts none."""
    failures: list[Exception] = []
    for proposal, sizes in _proposals(subject):
        try:
            inputs = _run(subject, proposal, sizes)
        except Exception as error:
            failures.append(error)
            continue
        axes, other = _second_size(subject, proposal, sizes)
        return assemble("default", subject, inputs=inputs, other_inputs=other, axes=axes)
    raise _no_inputs(subject, failures)


def can_be_made(subject: ModelContext) -> bool:
    """Whether eager accepts any proposal of inputs."""
    for proposal, sizes in _proposals(subject):
        with suppress(Exception):
            _run(subject, proposal, sizes)
            return True
    return False


def _proposals(subject: ModelContext) -> Iterator[tuple[InputProposal, ExampleSizes]]:
    for sizes in (FIRST, _ONE):
        yield from ((proposal, sizes) for proposal in propose_inputs(subject))


def _run(subject: ModelContext, proposal: InputProposal, sizes: ExampleSizes) -> dict[str, Any]:
    """The inputs at these sizes, after eager has taken them. Raises what eager raises."""
    inputs = proposal.inputs(subject, within_limits(sizes, subject))
    run_once(subject.model, ((), inputs))
    return inputs


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
    lengths = frozenset({"sequence", "decoder sequence", "samples", "frames"})
    if first.batch > 1:
        yield SECOND, lengths | {"batch"}
        yield replace(first, batch=SECOND.batch), frozenset({"batch"})
    yield replace(SECOND, batch=first.batch), lengths


def _no_inputs(subject: ModelContext, failures: list[Exception]) -> TargetError:
    """The error where no proposal ran: the first failure, which is that of the most complete inputs."""
    what = type(subject.model).__name__
    if not failures:
        return TargetError(f"No inputs are known for {what}", hint="Write a factory: file.py:factory")
    first = failures[0]
    random = "Try --weights random (not every operator takes fake weights). " if subject.is_fake else ""
    hint = f"{random}Write a factory with its inputs: file.py:factory"
    return TargetError(
        f"The eager forward of {what} fails on the inputs made for it: {type(first).__name__}: {first_line(first)}",
        hint=hint,
        stack=own_stack(first),
    )

"""Which dynamic sizes are constants in a program, and which guard of its export refuses others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exportdoctor.shims import ExportCall
from exportdoctor.targets.built import Inputs
from exportdoctor.worker.describe.guard_origin import Guard, GuardLog
from exportdoctor.worker.domain.size_checks import find_violated_guard
from exportdoctor.worker.domain.sized_inputs import SizedInputs, sized_inputs


def find_fixed_axes(
    program: Any, call: ExportCall, given: ExportCall, axes: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...] | None:
    """The names of the axes that have a constant size somewhere among the program's inputs; None if that is not known.

    `given` is what was exported, with the inputs that shims made of those of `call`.
    """
    inputs = _inputs_of(program, call, given)
    if inputs is None:
        return None
    places, fixed = inputs.places(), []
    for name, texts in axes.items():
        found = [places[text] for text in texts if text in places]
        if not found:  # the program's inputs are named otherwise
            return None
        shapes = [(inputs.shapes.get(leaf), dimension) for leaf, dimension in found]
        sizes = [shape[at] if isinstance(shape, tuple) and at is not None else shape for shape, at in shapes]
        if any(isinstance(size, int) for size in sizes):
            fixed.append(name)
    return tuple(fixed) if inputs.shapes else None


def find_refusing_guard(
    program: Any, call: ExportCall, given: ExportCall, log: GuardLog, refused: Inputs
) -> Guard | None:
    """The first guard of the export that the sizes of these inputs violate; None if that is not known."""
    inputs = _inputs_of(program, call, given)
    sizes = inputs.sizes_of(refused) if inputs is not None else None
    found = find_violated_guard(log, inputs, sizes) if inputs is not None and sizes is not None else None
    return found[0] if found is not None else None


def _inputs_of(program: Any, call: ExportCall, given: ExportCall) -> SizedInputs | None:
    """The call's inputs with the program's sizes; None where they fit no signature."""
    example = (call.args, call.kwargs)
    try:
        return sized_inputs(call.module, example, call.dynamic_shapes, program, (given.args, given.kwargs))
    except Exception:
        return None

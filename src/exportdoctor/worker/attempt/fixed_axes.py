"""Which dynamic sizes of a call are constants in the program that was exported of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exportdoctor.shims import ExportCall
from exportdoctor.worker.domain.sized_inputs import sized_inputs


def find_fixed_axes(
    program: Any, call: ExportCall, given: ExportCall, axes: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...] | None:
    """The names of the axes that have a constant size somewhere among the program's inputs; None if that is not known.

    `given` is what was exported, with the inputs that shims made of those of `call`.
    """
    example = (call.args, call.kwargs)
    try:
        inputs = sized_inputs(call.module, example, call.dynamic_shapes, program, (given.args, given.kwargs))
    except Exception:  # inputs that fit no signature: nothing follows about the program
        return None
    places, fixed = inputs.places(), []
    for name, texts in axes.items():
        found = [places[text] for text in texts if text in places]
        shapes = [(inputs.shapes.get(leaf), dimension) for leaf, dimension in found]
        sizes = [shape[at] if isinstance(shape, tuple) and at is not None else shape for shape, at in shapes]
        if any(isinstance(size, int) for size in sizes):
            fixed.append(name)
    return tuple(fixed) if inputs.shapes else None

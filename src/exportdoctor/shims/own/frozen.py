"""The specialised last resort: dynamic dimensions are frozen at the example's sizes, one by name or all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, shapes_by_name
from exportdoctor.shims.record import NotApplicable, Replacement, Shim

_PLACE = re.compile(r"(\w+)((?:\[\d+\])*)\[(\d+)\]")


@contextmanager
def _all_static(call: ExportCall) -> Iterator[ExportCall]:
    if call.dynamic_shapes is None:
        raise NotApplicable("no dimension is dynamic")
    yield replace(call, dynamic_shapes=None)


def static_axis(axis: str, places: tuple[str, ...]) -> Shim:
    """A shim that freezes one named axis; `places` are its dimensions, as `pixel_values[0]` or `cache[3][2]`."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        shapes = shapes_by_name(call)
        frozen = shapes
        for place in places:
            frozen = _freeze(frozen, place)
        if frozen == shapes:
            raise NotApplicable(f"no dimension called {axis} is dynamic")
        yield replace(call, dynamic_shapes=frozen)

    return replace(
        SHIM,
        id=f"static-dim:{axis}",
        title=f"The dimension {axis} is fixed at the example's size",
        does=f"The program takes no other size of {axis} than the example's.",
        precondition=f"{axis} is as long as in the example",
        enter=enter,
        rank=70,
    )


def _freeze(shapes: Any, place: str) -> Any:
    found = _PLACE.fullmatch(place)
    if found is None or not isinstance(shapes, dict):
        return shapes
    inner = [int(index) for index in re.findall(r"\d+", found[2])]
    return {**shapes, found[1]: _without(shapes.get(found[1]), [*inner, int(found[3])])}


def _without(spec: Any, path: list[int]) -> Any:
    match spec:
        case dict():
            return {dimension: dim for dimension, dim in spec.items() if dimension != path[0]}
        case list() | tuple() if path[0] < len(spec):
            inner = None if len(path) == 1 else _without(spec[path[0]], path[1:])
            return type(spec)(inner if place == path[0] else value for place, value in enumerate(spec))
    return spec


SHIM = Shim(
    id="static-dim",
    title="Fixes every dimension at the example's size",
    soundness="specialised",
    enter=_all_static,
    does=("The program takes only inputs of the example's sizes. `static-dim:AXIS` fixes one named dimension."),
    precondition="all sizes equal the example's",
    cures=(
        Cure(
            kinds=(
                "data_dependent_guard",
                "dynamic_dim_specialised",
                "dims_related",
                "invalid_dynamic_shapes",
                "python_error",
            )
        ),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#expressing-dynamism",
    retire="",
    rank=90,
    replaces=(
        Replacement(target="the dynamic shapes", before='{"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}}\n', after="None\n"),
    ),
)

"""The search of the domain of an exported program: its inputs, their axes, the checks of the program, its run."""

from __future__ import annotations

from typing import Any

from exportdoctor.shims import ExportCall
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.built import Inputs
from exportdoctor.worker.describe.guard_origin import GuardLog
from exportdoctor.worker.domain.size_axes import declared_bounds, find_axes, is_plain
from exportdoctor.worker.domain.size_checks import SizeChecks
from exportdoctor.worker.domain.size_trials import PROGRAM, DomainSearch, TriedStage
from exportdoctor.worker.domain.sized_inputs import sized_inputs


def make_search(
    part: BuiltPart, call: ExportCall, program: Any, log: GuardLog | None, *, alone: bool = False
) -> DomainSearch:
    """The search of the domain of a program that was exported by this call; `alone`: there is no eager."""
    example = (part.args, part.kwargs)
    given = (call.args, call.kwargs)
    inputs = sized_inputs(part.module, example, part.dynamic_shapes, program, given, others=part.more_inputs)
    inputs.declared = declared_bounds(part.dynamic_shapes)
    axes = find_axes(inputs, part.axes)
    ready = program.module()
    checks = None
    if inputs.shapes:
        own = {place for axis in axes for place in axis.same.values()}
        mine = [(place, axis) for axis in axes for place in axis.rules if place not in own and axis.is_itself_at(place)]
        names = {inputs.place_name(place): axis.name for place, axis in mine}
        names |= {place: name for name, places in part.axes.items() if is_plain(name) for place in places}
        checks = SizeChecks(inputs=inputs, program=program, module=ready, names=names, log=log)

    def run(given: Inputs) -> Any:
        args, kwargs = call.convert(given)
        return ready(*args, **kwargs)

    first = TriedStage(name=PROGRAM, run=run, holder=ready)
    return DomainSearch(inputs=inputs, axes=axes, stages=[first], eager=None if alone else part.module, checks=checks)

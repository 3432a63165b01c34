"""A target that this process has built for every scan whose worker is a fork of it: those of one target of a sweep.

The scans differ in what they ask and in whether sizes are fixed, which is decided when a part is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.records.target import TargetRef
from exportdoctor.process.graphics_cards import visible_cards
from exportdoctor.targets import Plan, build, resolve
from exportdoctor.targets.configuration import ConfigurationPlan
from exportdoctor.targets.eager import blame_running_code
from exportdoctor.torch_internals.fake_cuda import start_autograd_without_threads
from exportdoctor.worker import environment
from exportdoctor.worker.process_state import keep_process
from exportdoctor.worker.read_log import LOG

if TYPE_CHECKING:
    from exportdoctor.targets.built import BuiltPart, BuiltTarget


@dataclass(frozen=True, kw_only=True)
class HeldTarget:
    """What came of a plan: the target, or why it cannot be built. `sources` is what was read."""

    plan: ConfigurationPlan
    built: BuiltTarget | ExportdoctorError
    sources: dict[str, str]

    def take(self, plan: Plan) -> BuiltTarget | None:
        """The target for this plan, None where that is of another target. Raises what building raised."""
        if not isinstance(plan, ConfigurationPlan) or _without_sizes(plan) != self.plan:
            return None
        LOG.recall(self.sources)
        if isinstance(self.built, ExportdoctorError):
            raise self.built
        return dataclasses.replace(self.built, static=plan.options.static)


_HELD: list[HeldTarget] = []


def take_held(plan: Plan) -> BuiltTarget | None:
    """The target that this process holds, if it is the one of the plan. Raises what building it raised."""
    return _HELD[0].take(plan) if _HELD else None


def hold(ref: str) -> bool:
    """Build a target of a configuration with the parts that are scanned by default.

    False where each scan is to build it: a factory's code may do otherwise each time, building read what no later
    scan could compare, or there is a GPU, whose context no fork can use.
    """
    plan = resolve(TargetRef(ref=ref))
    if not isinstance(plan, ConfigurationPlan) or visible_cards():
        return False
    LOG.start()
    built: BuiltTarget | ExportdoctorError
    sources: dict[str, str] = {}
    try:
        with LOG.watch(), keep_process(), blame_running_code(f"Building {plan.title} failed"):
            built = build(plan)
            start_autograd_without_threads()
            makers = {name: _made_ahead(built, name) for name in plan.parts}
            built = dataclasses.replace(built, makers={**built.makers, **makers})
            sources = environment.sources(built.model)
    except ExportdoctorError as error:
        built, sources = error, LOG.collect()
    if LOG.reasons():
        return False
    _HELD[:] = [HeldTarget(plan=_without_sizes(plan), built=built, sources=sources)]
    return True


def _without_sizes(plan: ConfigurationPlan) -> ConfigurationPlan:
    return dataclasses.replace(plan, options=msgspec.structs.replace(plan.options, static=False))


def _made_ahead(built: BuiltTarget, name: str) -> Callable[[], BuiltPart]:
    """A maker that gives the part which is made now the first time, or raises why it cannot be made."""
    make = built.makers[name]
    try:
        parts = [make()]
    except ExportdoctorError as error:
        return partial(_refuse, error)
    return lambda: parts.pop() if parts else make()


def _refuse(error: ExportdoctorError) -> BuiltPart:
    raise error

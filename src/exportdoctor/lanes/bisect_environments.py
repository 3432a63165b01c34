"""Searches the differences between an environment that works and one that fails for those that make the failure."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from packaging.utils import canonicalize_name

from exportdoctor.core.errors import UsageError
from exportdoctor.core.run.bisection import Difference, EnvironmentBisection
from exportdoctor.core.versions import installed_version, installed_versions
from exportdoctor.lanes.bisect_versions import LaneAsker, Tell
from exportdoctor.lanes.code_changes import code_changes
from exportdoctor.lanes.environment_file import Environment, read_environment_file
from exportdoctor.lanes.lane import Lane, LaneSpec, here, is_same_release, list_lanes
from exportdoctor.lanes.lane_maker import make_lane
from exportdoctor.lanes.lane_question import LaneQuestion
from exportdoctor.reduce import Verdict
from exportdoctor.reduce.difference_search import find_differences

_ONE_BY_ONE = 12
_NO_DIFFERENCE = {"pip", "setuptools", "wheel", "uv", "exportdoctor"}


def read_environment(given: str) -> Environment:
    """What a `pip freeze`, a requirements or a lock file pins, or a lane or `here` has. Raises UsageError."""
    lane = next((one for one in (here(), *list_lanes()) if given in (one.name, one.spec.title)), None)
    return read_environment_file(Path(given)) if lane is None else Environment(_of_lane(lane))


def find_difference(works: Environment, fails: Environment) -> tuple[Difference, ...]:
    """The packages that one has in another release than the other, or not at all. A build is not told from a release
    without one: lock files name no builds."""
    names = sorted((works.versions.keys() | fails.versions.keys()) - _NO_DIFFERENCE)
    pairs = [(one, works.versions.get(one, ""), fails.versions.get(one, "")) for one in names]
    return tuple(
        Difference(package=name, works=before, fails=after)
        for name, before, after in pairs
        if not (is_same_release(before, after) or is_same_release(after, before))
    )


def bisect_environments(
    question: LaneQuestion, works: Environment, fails: Environment, tell: Tell
) -> EnvironmentBisection:
    """Ask between both. Each lane has exactly what is named, beside what this environment has."""
    differences = find_difference(works, fails)
    if not differences:
        raise UsageError("both environments have the same packages")
    changed = _NO_DIFFERENCE | {one.package for one in differences}
    common = {name: version for name, version in works.versions.items() if name not in changed}
    asker = LaneAsker(question, tell)

    def lane(subset: tuple[Difference, ...]) -> Lane:
        wanted = {one.package: one.fails if one in subset else one.works for one in differences}
        packages = {name: version for name, version in {**common, **wanted}.items() if version}
        if "torch" not in packages or is_same_release(installed_version("torch"), packages["torch"]):
            packages = {
                name: one for name, one in packages.items() if not is_same_release(installed_version(name), one)
            }
        return make_lane(LaneSpec(packages=packages, exact=True), tell) if packages else here()

    def ask(subset: tuple[Difference, ...]) -> Verdict:
        return asker.verdict(_name(subset, differences), lane(subset), again=False)

    asker.want(_name(differences, differences), lane(differences))
    ends = {subset: _confirm(asker, _name(subset, differences), lane(subset)) for subset in ((), differences)}
    hidden = [one for one in differences if not (one.works and one.fails) and installed_version(one.package)]
    notes = [
        *(f"{one.package} is installed here and cannot be taken away from an environment" for one in hidden),
        *(f"of the environment that works: {said}" for said in works.left_out),
        *(f"of the environment that fails: {said}" for said in fails.left_out if said not in works.left_out),
    ]
    answer = EnvironmentBisection(
        asked=question.name,
        about=question.about,
        here=installed_versions(("torch", "transformers")),
        failure=asker.wanted,
        differences=differences,
        trials=(),
        notes=tuple(notes),
        script=question.script,
    )
    if ends[()] is not Verdict.NO or ends[differences] is not Verdict.YES:
        return _with(answer, asker)
    result = find_differences(differences, ask, one_by_one=_ONE_BY_ONE)
    culprits = result.alone or result.together
    made_by: list[tuple[Difference, ...]] = [(one,) for one in result.alone]
    for subset in made_by or [result.together]:
        _confirm(asker, _name(subset, differences), lane(subset))
    failing = result.alone[:1] or result.together
    seen = asker.stack_of(_name(failing, differences))
    changes = [
        change
        for one in culprits
        if seen is not None
        for change in code_changes(one.package, seen, lane(failing), lane(()), script=question.script)
    ]
    unknown = tuple(_name(subset, differences) for subset in result.unknown)
    return _with(answer, asker, alone=result.alone, together=result.together, unknown=unknown, changes=tuple(changes))


def _with(answer: EnvironmentBisection, asker: LaneAsker, **found: Any) -> EnvironmentBisection:
    trials = tuple(asker.trial(name) for name in asker.seen)
    return msgspec.structs.replace(answer, trials=trials, **found)


def _confirm(asker: LaneAsker, name: str, lane: Lane) -> Verdict:
    """Asked twice; unknown if the answers differ."""
    first = asker.verdict(name, lane, again=False)
    return first if asker.verdict(name, lane, again=True) is first else Verdict.UNKNOWN


def _name(subset: tuple[Difference, ...], differences: tuple[Difference, ...]) -> str:
    if not subset:
        return "the environment that works"
    if subset == differences:
        return "the environment that fails"
    return ", ".join(one.line for one in subset)


def _of_lane(lane: Lane) -> dict[str, str]:
    """What it sees: its own packages, and behind them those of this environment."""
    pins = (pin.partition("==") for pin in lane.pins)
    beneath = () if "torch" in lane.spec.packages else metadata.distributions()
    found: dict[str, str] = {canonicalize_name(one.name): one.version for one in beneath}
    return found | {canonicalize_name(name): version for name, _, version in pins}

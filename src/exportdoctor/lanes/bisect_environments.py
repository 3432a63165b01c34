"""Searches the differences between an environment that works and one that fails for those that make the failure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from exportdoctor.core.errors import UsageError
from exportdoctor.core.read_file import read_file
from exportdoctor.core.run.bisection import Difference, EnvironmentBisection
from exportdoctor.core.versions import installed_version, installed_versions
from exportdoctor.lanes.bisect_versions import LaneAsker, Tell
from exportdoctor.lanes.code_changes import code_changes
from exportdoctor.lanes.lane import Lane, LaneSpec, here, list_lanes
from exportdoctor.lanes.lane_maker import make_lane
from exportdoctor.lanes.lane_question import LaneQuestion
from exportdoctor.reduce import Verdict
from exportdoctor.reduce.difference_search import find_differences

_ONE_BY_ONE = 12
_NO_DIFFERENCE = {"pip", "setuptools", "wheel", "uv", "exportdoctor"}
_PIN = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?\s*===?\s*(\d[\w.!+-]*)")
Environment = Mapping[str, str]


def read_environment(given: str) -> dict[str, str]:
    """The versions by package of a `pip freeze`, a requirements or a lock file, a lane or `here`. Raises UsageError."""
    lane = next((one for one in (here(), *list_lanes()) if given in (one.name, one.spec.title)), None)
    if lane is not None:
        return _of_lane(lane)
    try:
        text = read_file(Path(given)).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{given} cannot be read: {said}", hint="Give a lock file, a pip freeze or a lane") from error
    found = _of_lock_file(text) or {
        _normal(m[1]): m[2] for line in text.splitlines() if (m := _PIN.match(line.strip()))
    }
    if not found:
        raise UsageError(f"{given} pins no package", hint="It should have lines such as transformers==4.57.1")
    return found


def bisect_environments(
    question: LaneQuestion, works: Environment, fails: Environment, tell: Tell
) -> EnvironmentBisection:
    """Ask between both. Each lane has exactly what is named, beside what this environment has."""
    names = sorted((works.keys() | fails.keys()) - _NO_DIFFERENCE)
    found = [Difference(package=one, works=works.get(one, ""), fails=fails.get(one, "")) for one in names]
    differences = tuple(one for one in found if one.works != one.fails)
    if not differences:
        raise UsageError("both environments have the same packages")
    common = {one.package: one.works for one in found if one.works == one.fails}
    asker = LaneAsker(question, tell)

    def lane(subset: tuple[Difference, ...]) -> Lane:
        wanted = {one.package: one.fails if one in subset else one.works for one in differences}
        packages = {name: version for name, version in {**common, **wanted}.items() if version}
        if "torch" not in packages or packages["torch"] == installed_version("torch"):
            packages = {name: one for name, one in packages.items() if installed_version(name) != one}
        return make_lane(LaneSpec(packages=packages, exact=True), tell) if packages else here()

    def ask(subset: tuple[Difference, ...]) -> Verdict:
        return asker.verdict(_name(subset, differences), lane(subset), again=False)

    asker.want(_name(differences, differences), lane(differences))
    ends = {subset: _confirm(asker, _name(subset, differences), lane(subset)) for subset in ((), differences)}
    hidden = [one for one in differences if not (one.works and one.fails) and installed_version(one.package)]
    notes = [f"{one.package} is installed here and cannot be taken away from an environment" for one in hidden]
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
    return {_normal(one.name): one.version for one in beneath} | {_normal(name): version for name, _, version in pins}


def _of_lock_file(text: str) -> dict[str, str]:
    """uv.lock, poetry.lock and pylock.toml list tables with name and version."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}
    tables = content.get("package") or content.get("packages")
    rows = tables if isinstance(tables, list) else []
    return {
        _normal(one["name"]): one["version"]
        for one in rows
        if isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("version"), str)
    }


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

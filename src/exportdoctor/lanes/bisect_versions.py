"""Searches the releases of one package for the one at which a failure came or went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from packaging.version import Version

from exportdoctor.core.run.bisection import Trial, VersionBisection, VersionTurn
from exportdoctor.core.run.lane_matrix import FailureName, LaneAnswer
from exportdoctor.core.versions import installed_version, installed_versions
from exportdoctor.lanes.code_changes import code_changes
from exportdoctor.lanes.lane import Lane, LaneSpec, here
from exportdoctor.lanes.lane_maker import make_lane
from exportdoctor.lanes.lane_question import Ask, LaneQuestion
from exportdoctor.reduce import Verdict
from exportdoctor.reduce.version_search import Turn, find_turn

Tell = Callable[[str], None]
_VERDICTS = {"same failure": Verdict.YES, "passes": Verdict.NO}
_OR_ANOTHER = {**_VERDICTS, "other failure": Verdict.NO}
_SHOWN = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")


class VersionRange(NamedTuple):
    """The releases of a package that are searched, oldest first; `fixed` are other versions of other packages."""

    package: str
    releases: tuple[str, ...]
    fixed: dict[str, str]


class LaneAsker:
    """Asks one question in the lanes of a search and keeps what was seen.

    `wanted` is the failure that it is about; where none is known, the first that is seen.
    """

    def __init__(self, question: LaneQuestion, tell: Tell) -> None:
        self.question = question
        self.wanted = question.wanted
        self.seen: dict[str, LaneAnswer] = {}
        self.flaky: set[str] = set()
        self._second: dict[str, LaneAnswer] = {}
        self.verdicts = _VERDICTS
        self._tell = tell

    def verdict(self, name: str, lane: Lane, again: bool) -> Verdict:
        """Whether the wanted failure is seen in a lane, which `name` is short for."""
        known = self._second if again else self.seen
        if name not in known:
            known[name] = self._ask(self.question.small, lane, again, name)
        answer, first = known[name], self.seen[name]
        if answer.cell(self.wanted).state != first.cell(self.wanted).state:
            self.flaky.add(name)
        if name in self.flaky:
            return Verdict.UNKNOWN
        return self.verdicts.get(answer.cell(self.wanted).state, Verdict.UNKNOWN)

    def want(self, name: str, lane: Lane) -> bool:
        """Take the failure of this lane as the wanted one, if none is known; whether one is."""
        if self.wanted is None:
            self.seen[name] = answer = self._ask(self.question.small, lane, False, name)
            self.wanted = answer.failures[0] if answer.failures else None
        return self.wanted is not None

    def trial(self, name: str) -> Trial:
        """What was seen there first."""
        return Trial(name=name, cell=self.seen[name].cell(self.wanted), flaky=name in self.flaky)

    def ask_whole(self, name: str, lane: Lane) -> Trial | None:
        """What the whole shows there; None if nothing larger was asked."""
        if self.question.whole is None:
            return None
        return Trial(name=name, cell=self._ask(self.question.whole, lane, False, f"{name}, whole").cell(self.wanted))

    def stack_of(self, name: str) -> FailureName | None:
        """The wanted failure as it was seen there."""
        same = (one for one in self.seen[name].failures if self.wanted is not None and one.is_same(self.wanted))
        return next(same, None)

    def _ask(self, ask: Ask, lane: Lane, again: bool, name: str) -> LaneAnswer:
        answer = ask(lane, again)
        cell = answer.cell(self.wanted)
        self._tell(f"{name}: {cell.state}{', asked again' if again else ''}{f': {cell.detail}' if cell.detail else ''}")
        return answer


class _Search:
    def __init__(self, question: LaneQuestion, versions: VersionRange, tell: Tell) -> None:
        self.asker = LaneAsker(question, tell)
        self.versions = versions
        self.tell = tell

    @cached_property
    def here(self) -> int | None:
        """The index of the release that this environment has, if it is among them."""
        version = installed_version(self.versions.package)
        return self.versions.releases.index(version) if version in self.versions.releases else None

    def lane(self, release: str) -> Lane:
        package, _, fixed = self.versions
        if release == installed_version(package) and not fixed:
            return here()
        return make_lane(LaneSpec(packages={package: release, **fixed}), self.tell)

    def run(self) -> tuple[Turn, ...]:
        """Where the ends agree, and this environment between them does not, the failure came and went, or so.

        A failure that never turns into a pass may turn into another one.
        """
        count = len(self.versions.releases)
        some = [index for index in (self.here, count - 1, 0) if index is not None]
        if not any(self.asker.want(name := self.versions.releases[i], self.lane(name)) for i in some):
            return ()
        ranges = [(0, count - 1)]
        if self.here is not None and 0 < self.here < count - 1:
            ranges += [(0, self.here), (self.here, count - 1)]
        for self.asker.verdicts in (_VERDICTS, _OR_ANOTHER):
            turns = [self._between(*ranges[0])]
            if turns == [None]:
                turns = [self._between(*half) for half in ranges[1:]]
            if found := tuple(turn for turn in turns if turn is not None):
                return found
        return ()

    def _between(self, first: int, last: int) -> Turn | None:
        names = self.versions.releases[first : last + 1]
        ask: Callable[[int, bool], Verdict] = lambda index, again: self.asker.verdict(  # noqa: E731
            names[index], self.lane(names[index]), again
        )
        turn = find_turn(len(names), ask).turn
        return Turn(turn.before + first, turn.after + first, turn.fails_before) if turn is not None else None

    def explain(self, turn: Turn) -> VersionTurn:
        """What the whole shows on both sides, what changed, and the pin that works."""
        package, releases, _ = self.versions
        before, after = releases[turn.before], releases[turn.after]
        failing, passing = (before, after) if turn.fails_before else (after, before)
        lanes = {name: self.lane(name) for name in (failing, passing)}
        whole = tuple(one for name in (failing, passing) if (one := self.asker.ask_whole(name, lanes[name])))
        works = all(one.cell.state == "passes" for one in whole if one.name == passing)
        pin = f"{package}>={passing}" if turn.fails_before else f"{package}<={passing}"
        other = self.asker.trial(passing).cell
        seen = self.asker.stack_of(failing)
        between = (lanes[failing], lanes[passing])
        script = self.asker.question.script
        changes = code_changes(package, seen, *between, script=script) if seen is not None else ()
        return VersionTurn(
            failing=failing,
            passing=passing,
            came=not turn.fails_before,
            into="" if other.state == "passes" else other.detail,
            whole=whole,
            changes=changes,
            pin=pin if works and other.state == "passes" else "",
        )


def bisect_versions(
    question: LaneQuestion, versions: VersionRange, tell: Tell, *, notes: Sequence[str] = ()
) -> VersionBisection:
    """Ask in the lanes of the releases. Lanes are made as they are needed; one that cannot be made is unknown."""
    search = _Search(question, versions, tell)
    turns = tuple(search.explain(turn) for turn in search.run())
    asker = search.asker
    return VersionBisection(
        asked=question.name,
        about=question.about,
        package=versions.package,
        here={**installed_versions(name for name in _SHOWN if name != versions.package), **versions.fixed},
        failure=asker.wanted,
        trials=tuple(asker.trial(name) for name in sorted(asker.seen, key=Version)),
        turns=turns,
        notes=tuple(notes),
        script=question.script,
    )

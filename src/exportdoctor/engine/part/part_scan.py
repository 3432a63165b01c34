"""One part's scan: which modules to ask next. No process is touched here; what is known stands in the part's chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from exportdoctor.core import events as ev
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol.scan import CallFact, Captured
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.cure.driver import CureDriver
from exportdoctor.engine.cure.search import CureSearch
from exportdoctor.engine.part.call_tree import below
from exportdoctor.engine.part.followups import FollowUps
from exportdoctor.engine.part.part_events import Telling
from exportdoctor.engine.part.questions import Answer, CallSite, Questions
from exportdoctor.engine.part.state import Chart
from exportdoctor.engine.verdicts.judge import Verdict, judge
from exportdoctor.shims import installed_versions, registry


class PartScan:
    """Feed it outcomes with `answered`; it yields probes to ask and events to tell."""

    def __init__(self, captured: Captured, *, options: ScanOptions, versions: Mapping[str, str]) -> None:
        template = Probe(part=captured.part, fqn="", exporter=options.exporter, to=options.to)
        self.questions = Questions(captured, template)
        root = next(module for module in captured.modules if module.fqn == captured.prefix)
        dynamic = any(leaf.axes for leaf in root.calls[0].inputs)
        ladder = FollowUps(template, self.questions.fact, dynamic=dynamic)
        self.chart = Chart(captured, options, versions, ladder)
        self.telling = Telling(self.chart)
        self._wanted: set[str] = set()
        self._by_parent: set[str] = set()

    @property
    def name(self) -> str:
        """The part's name."""
        return self.chart.captured.part

    @property
    def judged(self) -> bool:
        """Whether every module that was asked for has its verdict."""
        return not self.chart.open

    def has_root_failed(self) -> bool:
        """Whether the part's root was asked and fails."""
        root = self.chart.root
        return root is not None and root.failing

    def begin(self) -> Iterator[Probe | ev.AnyEvent]:
        """The first questions: the root, the modules that were chosen, or every called module."""
        if self.chart.options.modules:
            for fqn in self.chart.options.modules:
                if fqn in self.chart.facts:
                    yield from self._want(fqn)
        elif self.chart.options.exhaustive:
            sizes = {fqn: len(below(self.chart.tree, fqn)) for fqn in self.chart.facts}
            for fqn in sorted(sizes, key=lambda name: -sizes[name]):  # two processors are then busy to the end
                yield from self._want(fqn)
        else:
            yield from self._want(self.chart.captured.prefix)

    def at_other_sizes(self, captured: Captured) -> PartScan:
        """The same, captured at other sizes too, where no more than its root was asked: that question stands."""
        found = PartScan(captured, options=self.chart.options, versions=self.chart.versions)
        found.chart.started = self.chart.started
        for _ in found.begin():
            pass
        return found

    def answered(self, outcome: Outcome) -> Iterator[Probe | ev.AnyEvent]:
        """Take one outcome in."""
        if self.chart.cure is not None and self.chart.cure.awaits(outcome):
            yield from self.chart.cure.answered(outcome)
            return
        if self.chart.ladder.awaits(outcome):
            yield from self.chart.ladder.answered(outcome)
            yield from self.chart.ladder.climb(self.chart.shown())
            return
        self.chart.asked += 1
        yield from self.questions.answered(outcome)
        yield from self._judge_what_is_known(tuple(self.chart.open))

    def climb(self) -> Iterator[Probe]:
        """What is asked of the failures once every module has its verdict."""
        yield from self.chart.ladder.replace_children(self.chart.placed_verdicts())
        yield from self.chart.ladder.climb(self.chart.shown())

    def seek_cure(self, twin: Captured | None, *, values: bool) -> Iterator[Probe]:
        """Begin the search for shims under which the part exports; `twin` is the part of the small twin."""
        root = self.chart.verdicts[self.chart.captured.prefix]
        if root.outcome.failure is not None and root.outcome.failure.stage != "export":
            return  # it exports; no shim is known that mends a later stage
        template = msgspec.structs.replace(self.questions.template, fqn=self.chart.captured.prefix, to="export")
        self.chart.cure = CureDriver(
            CureSearch(
                root=template,
                first=root.outcome,
                twin=msgspec.structs.replace(template, part=twin.part, fqn=twin.prefix) if twin else None,
                values=values,
                shims=registry(self.chart.options.shim_files),
                versions=installed_versions(),
                axes=self.chart.captured.axes,
                allow=self.chart.options.allow,
            ),
            twin,
        )
        yield from self.chart.cure.begin()

    def call_fact(self, probe: Probe) -> CallFact:
        """The captured call that a probe is about."""
        twin = self.chart.cure.twin if self.chart.cure is not None else None
        if twin is not None and probe.part == twin.part:
            return twin.modules[0].calls[0]
        return self.questions.fact(CallSite(probe.fqn, probe.call))

    def _want(self, fqn: str) -> Iterator[Probe | ev.AnyEvent]:
        if fqn in self._wanted:
            return
        self._wanted.add(fqn)
        self.chart.open[fqn] = tuple(CallSite(fqn, index) for index in range(len(self.chart.facts[fqn].calls)))
        for place in self.chart.open[fqn]:
            yield from self.questions.want(place)
        yield from self._judge_what_is_known((fqn,))

    def _judge_what_is_known(self, fqns: tuple[str, ...]) -> Iterator[Probe | ev.AnyEvent]:
        fresh: list[Verdict] = []
        for fqn in fqns:
            known: list[tuple[CallSite, Answer]] = []
            for place in self.chart.open[fqn]:
                found = self.questions.answer(place)
                if found is None:
                    break
                known.append((place, found))
            else:
                del self.chart.open[fqn]
                self.chart.verdicts[fqn] = judge(fqn, tuple(known))
                fresh.append(self.chart.verdicts[fqn])
        for verdict in fresh:
            yield self.telling.judged(verdict)
            yield from self._follow(verdict)

    def _follow(self, verdict: Verdict) -> Iterator[Probe | ev.AnyEvent]:
        """Below a module that fails, ask its submodules; below one that passes, all pass within it."""
        if self.chart.options.exhaustive:
            return
        if verdict.failing:
            for child in list(self.chart.tree.successors(verdict.fqn)):
                yield from self._want(child)
            return
        carried = sorted(below(self.chart.tree, verdict.fqn) - set(self._wanted) - self._by_parent)
        if carried:
            self._by_parent.update(carried)
            yield ev.ModuleJudged(
                part=self.name,
                fqns=tuple(carried),
                status="pass",
                evidence="parent",
                same_as=None,
                stages=verdict.outcome.stages,
            )

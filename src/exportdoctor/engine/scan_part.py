"""One part's scan: which modules to ask next, and what their answers say. No process is touched here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import msgspec

from exportdoctor.core import event as ev
from exportdoctor.core.finding import Finding, ShimTry
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol import CallFact, Captured
from exportdoctor.engine.cure import CureSearch
from exportdoctor.engine.judge import Verdict, blaming, judge, same_bug, verdict_of_part
from exportdoctor.engine.ladder import Ladder, with_own
from exportdoctor.engine.localise import Case, cases, finding_of
from exportdoctor.engine.prescribe import Prescriber
from exportdoctor.engine.questions import Answer, Place, Questions
from exportdoctor.engine.same_disease import same_disease
from exportdoctor.engine.tree import below, call_tree, facts
from exportdoctor.shims import installed_versions, registry


class PartScan:
    """Feed it outcomes with `answered`; it yields probes to ask and events to tell."""

    def __init__(self, captured: Captured, *, options: ev.ScanOptions, versions: Mapping[str, str]) -> None:
        self.captured = captured
        self.options = options
        self.versions = versions
        self.tree = call_tree(captured)
        self.facts = facts(self.tree)
        self._classes = {fqn: fact.class_name for fqn, fact in self.facts.items()}
        self.started = time.monotonic()
        template = Probe(part=captured.part, fqn="", exporter=options.exporter, to=options.to)
        self.questions = Questions(captured, template)
        dynamic = any(leaf.axes for leaf in self.call_fact_of_root().inputs)
        self.ladder = Ladder(template, self.questions.fact, dynamic=dynamic)
        self.cure: CureSearch | None = None
        self.verdicts: dict[str, Verdict] = {}
        self.asked = 0
        self._wanted: set[str] = set()
        self._open: dict[str, tuple[Place, ...]] = {}
        self._by_parent: set[str] = set()
        self._ids: dict[tuple[str, ...], str] = {}
        self._told_findings: dict[str, Finding] = {}
        self._told_verdicts: dict[str, ev.ModuleJudged] = {}

    @property
    def name(self) -> str:
        """The part's name."""
        return self.captured.part

    @property
    def failing(self) -> bool:
        """Whether the part's root fails."""
        if self.options.modules:
            return any(verdict.failing for verdict in self.verdicts.values())
        root = self.verdicts.get(self.captured.prefix)
        return root is None or root.failing

    @property
    def judged(self) -> bool:
        """Whether every module that was asked for has its verdict."""
        return not self._open

    def has_root_failed(self) -> bool:
        """Whether the part's root was asked and fails."""
        root = self.verdicts.get(self.captured.prefix)
        return root is not None and root.failing

    def begin(self) -> Iterator[Probe | ev.AnyEvent]:
        """The first questions: the root, the modules that were chosen, or every called module."""
        if self.options.modules:
            for fqn in self.options.modules:
                if fqn in self.facts:
                    yield from self._want(fqn)
        elif self.options.exhaustive:
            sizes = {fqn: len(below(self.tree, fqn)) for fqn in self.facts}
            for fqn in sorted(sizes, key=lambda name: -sizes[name]):  # two processors are then busy to the end
                yield from self._want(fqn)
        else:
            yield from self._want(self.captured.prefix)

    def at_other_sizes(self, captured: Captured) -> PartScan:
        """The same, captured at other sizes too, where no more than its root was asked: that question stands."""
        found = PartScan(captured, options=self.options, versions=self.versions)
        found.started = self.started
        for _ in found.begin():
            pass
        return found

    def answered(self, outcome: Outcome) -> Iterator[Probe | ev.AnyEvent]:
        """Take one outcome in."""
        if self.cure is not None and self.cure.awaits(outcome):
            yield from self.cure.answered(outcome)
            return
        if self.ladder.awaits(outcome):
            yield from self.ladder.answered(outcome)
            yield from self.ladder.climb(self._shown())
            return
        self.asked += 1
        yield from self.questions.answered(outcome)
        yield from self._judge_what_is_known(tuple(self._open))

    def climb(self) -> Iterator[Probe]:
        """What is asked of the failures once every module has its verdict."""
        yield from self.ladder.replace_children(self._placed_verdicts())
        yield from self.ladder.climb(self._shown())

    def seek_cure(self, twin: Captured | None, *, values: bool) -> Iterator[Probe]:
        """Begin the search for shims under which the part exports; `twin` is the part of the small twin."""
        root = self.verdicts[self.captured.prefix]
        if root.outcome.failure is not None and root.outcome.failure.stage != "export":
            return  # it exports; no shim is known that mends a later stage
        template = msgspec.structs.replace(self.questions.template, fqn=self.captured.prefix, to="export")
        self.cure = CureSearch(
            Prescriber(
                root=template,
                first=root.outcome,
                twin=msgspec.structs.replace(template, part=twin.part, fqn=twin.prefix) if twin else None,
                values=values,
                shims=registry(self.options.shim_files),
                versions=installed_versions(),
                axes=self.captured.axes,
                allow=self.options.allow,
            ),
            twin,
        )
        yield from self.cure.begin()

    def call_fact(self, probe: Probe) -> CallFact:
        """The captured call that a probe is about."""
        if self.cure is not None and self.cure.twin is not None and probe.part == self.cure.twin.part:
            return self.cure.twin.modules[0].calls[0]
        return self.questions.fact(Place(probe.fqn, probe.call))

    def _want(self, fqn: str) -> Iterator[Probe | ev.AnyEvent]:
        if fqn in self._wanted:
            return
        self._wanted.add(fqn)
        self._open[fqn] = tuple(Place(fqn, index) for index in range(len(self.facts[fqn].calls)))
        for place in self._open[fqn]:
            yield from self.questions.want(place)
        yield from self._judge_what_is_known((fqn,))

    def _judge_what_is_known(self, fqns: tuple[str, ...]) -> Iterator[Probe | ev.AnyEvent]:
        fresh: list[Verdict] = []
        for fqn in fqns:
            known: list[tuple[Place, Answer]] = []
            for place in self._open[fqn]:
                found = self.questions.answer(place)
                if found is None:
                    break
                known.append((place, found))
            else:
                del self._open[fqn]
                self.verdicts[fqn] = judge(fqn, tuple(known))
                fresh.append(self.verdicts[fqn])
        for verdict in fresh:
            yield self._told(verdict)
            yield from self._follow(verdict)

    def _told(self, verdict: Verdict) -> ev.ModuleJudged:
        return ev.ModuleJudged(
            part=self.name,
            fqns=(verdict.fqn,),
            status=verdict.status,
            evidence="asked" if verdict.asked_itself else "equal",
            same_as=verdict.same_as,
            stages=verdict.outcome.stages,
            seconds=round(verdict.seconds, 4) if verdict.asked_itself else 0.0,
            note=self.ladder.notes.get(verdict.fqn, ""),
        )

    def _follow(self, verdict: Verdict) -> Iterator[Probe | ev.AnyEvent]:
        """Below a module that fails, ask its submodules; below one that passes, all pass within it."""
        if self.options.exhaustive:
            return
        if verdict.failing:
            for child in list(self.tree.successors(verdict.fqn)):
                yield from self._want(child)
            return
        carried = sorted(below(self.tree, verdict.fqn) - set(self._wanted) - self._by_parent)
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

    def _cases(self) -> list[Case]:
        """Every disease that is known: what modules show, and what lay hidden behind."""
        shown = self._shown()
        hidden = self._hidden(shown)
        return (
            cases([verdict for case in shown for verdict in case.verdicts] + hidden, self._classes) if hidden else shown
        )

    def _shown(self) -> list[Case]:
        """The diseases among the failing modules of which enough is known to say whose they are."""
        return cases(with_own(self._placed_verdicts(), self.ladder.own), self._classes)

    def _hidden(self, known: list[Case]) -> list[Verdict]:
        """Failures that the search for a cure met behind the first, and that no module showed."""
        if self.cure is None or self._open:
            return []  # a module may yet show it
        exporter = self.options.exporter
        fresh = [
            outcome
            for outcome in self.cure.prescriber.hidden()
            if not any(same_disease(outcome, case.leading().outcome, exporter=exporter) for case in known)
        ]
        place = Place(self.captured.prefix, 0)
        return [judge(place.fqn, ((place, Answer(place, outcome)),)) for outcome in fresh]

    def _placed_verdicts(self) -> list[Verdict]:
        failing = [fqn for fqn in self.facts if fqn in self.verdicts and self.verdicts[fqn].failing]
        return [verdict for fqn in failing if (verdict := self._placed(fqn)) is not None]

    def _placed(self, fqn: str) -> Verdict | None:
        """A failing module's verdict with whom to blame; None while that may still turn out to be a child.

        Where no frame says whose code failed, a child that alone fails in the same way is to blame, and so on down.
        """
        verdict = self.verdicts[fqn]
        children = list(self.tree.successors(fqn))
        if verdict.located or not children:
            return verdict
        if not all(child in self.verdicts for child in children):
            return None
        guilty = next((child for child in children if same_bug(verdict, self.verdicts[child])), None)
        if guilty is None:
            return verdict
        deeper = self._placed(guilty)
        return blaming(verdict, deeper) if deeper is not None else None

    def new_findings(self, numbers: Iterator[int]) -> Iterator[ev.AnyEvent]:
        """The findings that are new or have changed, numbered as they are met, and whose failure each is."""
        known = self._cases()
        for case in known:  # all of them have a name before one is told, for it may name another
            if case.key not in self._ids:
                self._ids[case.key] = f"F{next(numbers)}"
        for case in known:
            finding = self._finding(case, self._ids[case.key])
            if self._told_findings.get(finding.id) != finding:
                self._told_findings[finding.id] = finding
                yield ev.FindingMade(finding=finding)
            for verdict in self._telling(case):
                judged = msgspec.structs.replace(self._told(verdict), finding=finding.id)
                if self._told_verdicts.get(verdict.fqn) != judged:
                    self._told_verdicts[verdict.fqn] = judged
                    yield judged

    def _telling(self, case: Case) -> list[Verdict]:
        """The case's verdicts that are of modules as they are."""
        return [] if self._met_behind(case) else self.ladder.telling(case)

    def _met_behind(self, case: Case) -> bool:
        """Whether only the search for a cure met it."""
        met = self.cure.prescriber.hidden() if self.cure is not None else []
        return any(case.leading().outcome is outcome for outcome in met)

    def _finding(self, case: Case, name: str) -> Finding:
        finding = finding_of(
            case,
            name=name,
            part=self.name,
            exporter=self.options.exporter,
            classes=self._classes,
            passing={fqn for fqn, verdict in self.verdicts.items() if not verdict.failing},
            dynamic=self.ladder.dynamic,
            versions=self.versions,
        )
        if self._met_behind(case):
            finding = msgspec.structs.replace(finding, behind=self._id_of(self.captured.prefix))
        finding = self.ladder.told(case, finding, hidden_by=self._id_of(case.leading().fqn))
        return msgspec.structs.replace(finding, shims_tried=self._tried(case))

    def _tried(self, case: Case) -> tuple[ShimTry, ...]:
        """What each shim did that was tried where this was the failure."""
        if self.cure is None:
            return ()
        exporter, shown = self.options.exporter, case.leading().outcome
        tries = (
            ShimTry(
                shim="+".join(trial.shims),
                result=trial.result,
                next=self._id_of_failure(trial.outcome) if trial.result == "moved" else None,
                note=trial.note,
            )
            for trial in self.cure.prescriber.trials
            if same_disease(trial.before, shown, exporter=exporter)
        )
        return tuple({(one.shim, one.result): one for one in tries}.values())

    def _id_of_failure(self, outcome: Outcome) -> str | None:
        exporter = self.options.exporter
        found = (case for case in self._cases() if same_disease(outcome, case.leading().outcome, exporter=exporter))
        return next((self._ids.get(case.key) for case in found), None)

    def _id_of(self, fqn: str) -> str | None:
        """The finding that a module fails with, exported as it is."""
        answer = self.verdicts[fqn].deciding
        found = (case for case in self._cases() if any(verdict.deciding is answer for verdict in case.verdicts))
        return next((self._ids.get(case.key) for case in found), None)

    def conclude(self) -> Iterator[ev.AnyEvent]:
        """The part's verdict."""
        prescriber = self.cure.prescriber if self.cure is not None else None
        verdict = verdict_of_part(self.verdicts.get(self.captured.prefix))
        if self.options.modules:
            verdict = "fails" if self.failing else "passes"
        if prescriber is not None and prescriber.prescription is not None and not prescriber.note:
            verdict = "cured"
        elif prescriber is not None:
            yield ev.Noted(text=f"{self.name}: {prescriber.note}")
        yield ev.PartFinished(
            part=self.name,
            verdict=verdict,
            exporter=self.options.exporter,
            seconds=round(time.monotonic() - self.started, 3),
            asked=self.asked,
            prescription=prescriber.prescription if prescriber is not None else None,
            only=tuple(fqn for fqn in self.options.modules if fqn in self.facts),
        )

    def call_fact_of_root(self) -> CallFact:
        """The root's call."""
        return self.facts[self.captured.prefix].calls[0]

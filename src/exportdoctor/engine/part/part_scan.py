"""One part's scan: what to probe next, and which events to send. No process is touched here.

The modules that are asked first are the part's root or those that were chosen. Below a module that fails its submodules
are asked; below one that passes none needs to be. What is known stands in `diagnosis`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.protocol.scan import CallFact, Captured
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe, probe_template
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.call_tree import CallSite, below
from exportdoctor.engine.cure.search import CureSearch
from exportdoctor.engine.cure.trial import SEARCHED_STAGES
from exportdoctor.engine.part.audit import Audit
from exportdoctor.engine.part.followups import FollowUps
from exportdoctor.engine.part.numbers_check import numbers_steps, numbers_steps_of_small_model
from exportdoctor.engine.part.part_diagnosis import PartDiagnosis
from exportdoctor.engine.part.part_events import findings_and_verdicts, module_judged, part_finished, passing_inside
from exportdoctor.engine.part.questions import Questions
from exportdoctor.engine.probe_driver import ProbeDriver, Request
from exportdoctor.engine.verdicts.judge import ModuleVerdict
from exportdoctor.shims import installed_versions, registry


class PartScan:
    """Given outcomes with `take`, it yields the probes that are needed next and the events of what became known."""

    def __init__(
        self,
        captured: Captured,
        *,
        options: ScanOptions,
        versions: Mapping[str, str],
        target: TargetRef | None = None,
    ) -> None:
        self.diagnosis = PartDiagnosis(captured, options, versions, target)
        self.questions = Questions(captured, probe_template(captured.part, options))
        self._driver = ProbeDriver()
        self._follow_ups: FollowUps | None = None
        self._audit: Audit | None = None
        self._small: Captured | None = None
        self._wanted: set[str] = set()
        self._inside_passing: set[str] = set()
        self._sent: dict[object, ev.AnyEvent] = {}

    @property
    def is_judged(self) -> bool:
        """Whether every module that was asked for has its verdict."""
        return not self.diagnosis.open

    def has_root_failed(self) -> bool:
        """Whether the part's root was asked and fails."""
        root = self.diagnosis.root
        return root is not None and root.failing

    def has_numbers_to_compare(self) -> bool:
        """Whether its root passes and has no values, so that nothing but a small model can show its numbers."""
        known = self.diagnosis
        passed = known.root is not None and not known.root.failing and known.numbers is not None
        return passed and not known.captured.has_values and EXPORTERS[known.options.exporter].makes_program

    def begin(self) -> Iterator[Request | ev.AnyEvent]:
        """The first probes."""
        for fqn in self.diagnosis.first_modules():
            yield from self._want(fqn)

    def at_other_sizes(self, captured: Captured) -> PartScan:
        """The same part, captured at other sizes too, where only its root was asked: that probe stands."""
        known = self.diagnosis
        found = PartScan(captured, options=known.options, versions=known.versions, target=known.target)
        found.diagnosis.started = self.diagnosis.started
        for _ in found.begin():
            pass
        return found

    def take(self, outcome: Outcome) -> Iterator[Request | ev.AnyEvent]:
        """Take one outcome in."""
        if self.asked_further(outcome):
            compared = self.diagnosis.numbers
            yield from self._driver.take(outcome)
            if self.diagnosis.numbers is not compared and (root := self.diagnosis.root) is not None:
                yield module_judged(self.diagnosis, root)
            yield from self._tell_audit()
            yield from self._search_dimensions()
            return
        self.diagnosis.asked += 1
        yield from self.questions.take(outcome)
        yield from self._judge(tuple(self.diagnosis.open))

    def asked_further(self, outcome: Outcome) -> bool:
        """Whether a search, a follow-up or the check of a passing part's numbers waits for it."""
        return self._driver.awaits(outcome)

    def start_audit(self, seed: int) -> Iterator[Request]:
        """Ask some modules themselves that were told the answer of an equal one, or with the option all."""
        self._audit = Audit(self.diagnosis, self.questions, seed=seed)
        for steps in self._audit.steps():
            yield from self._driver.start(steps)

    @property
    def is_audited(self) -> bool:
        """Whether the audit was started and has ended."""
        return self._audit is not None and not self._audit.is_under_way

    @property
    def distrusted(self) -> frozenset[str]:
        """Questions whose equality an audit found to be false."""
        return frozenset(self._audit.split_questions if self._audit is not None else ())

    def start_follow_ups(self) -> Iterator[Request]:
        """What is asked of the failures once every module has its verdict."""
        if not self.diagnosis.options.search:
            return
        self._follow_ups = FollowUps(self.diagnosis, self.questions.template, self.questions.fact)
        for steps in self._follow_ups.own_code_steps():
            yield from self._driver.start(steps)
        yield from self._search_dimensions()

    def start_cure_search(self, small: Captured | None, *, values: bool) -> Iterator[Request]:
        """Begin the search for shims under which the part exports; `small` is the part of the small model."""
        diagnosis, root = self.diagnosis, self.diagnosis.root
        assert root is not None
        stage = root.outcome.failure.stage if root.outcome.failure is not None else "export"
        of_program = diagnosis.has_wrong_numbers(root)
        if stage not in SEARCHED_STAGES and not of_program:
            return  # no shim is known that mends it
        self._small = small = None if of_program else small
        to = "export" if of_program else SEARCHED_STAGES[stage]
        template = msgspec.structs.replace(self.questions.template, fqn=diagnosis.captured.prefix, to=to)
        search = CureSearch(
            root=template,
            first=root.outcome,
            small=self._root_of(small, to=to) if small else None,
            values=values,
            shims=registry(diagnosis.options.shim_files),
            versions={**installed_versions(), **diagnosis.versions},
            axes=diagnosis.captured.axes,
            allow=diagnosis.options.allow,
            alternatives=diagnosis.options.alternatives,
            goal=self.questions.template.to,
        )
        if (of_program or to == "ort") and not search.has_candidates:
            return  # for few of the programs that compute otherwise, or that ONNX Runtime refuses, a shim is known
        diagnosis.cure = search
        yield from self._driver.start(search.steps())

    def compare_small_model(self, small: Captured) -> Iterator[Request]:
        """Compare the numbers of a part that passes on its small model."""
        self._small = small
        if small.has_values:
            yield from self._driver.start(numbers_steps_of_small_model(self.diagnosis, self._root_of(small)))

    def new_findings(self, numbers: Iterator[int]) -> Iterator[ev.AnyEvent]:
        """The findings that are new or have changed, numbered as they are met, and whose failure each is."""
        known = self.diagnosis.failures()
        for group in known:  # all of them have a number before one is sent, for it may name another
            if group.key not in self.diagnosis.ids:
                self.diagnosis.ids[group.key] = f"F{next(numbers)}"
        for event in findings_and_verdicts(self.diagnosis, known):
            key = event.finding.id if isinstance(event, ev.FindingMade) else event.fqns
            if self._sent.get(key) != event:
                self._sent[key] = event
                yield event

    def conclude(self) -> Iterator[ev.AnyEvent]:
        """The part's verdict."""
        yield from part_finished(self.diagnosis, self._audit.record() if self._audit is not None else None)

    def call_fact(self, probe: Probe) -> CallFact:
        """The captured call that a probe is about."""
        if self._small is not None and probe.part == self._small.part:
            return self._small.modules[0].calls[0]
        return self.questions.fact(CallSite(probe.fqn, probe.call))

    def _root_of(self, small: Captured, *, to: str = "export") -> Probe:
        return msgspec.structs.replace(self.questions.template, part=small.part, fqn=small.prefix, to=to)

    def _tell_audit(self) -> Iterator[Request | ev.AnyEvent]:
        """What the audit found, and new verdicts for the modules of a class that it split."""
        if self._audit is not None:
            yield from (ev.NoteAdded(text=f"{self.diagnosis.name}: {text}") for text in self._audit.new_notes())
            yield from self._judge(tuple(self.diagnosis.open))

    def _search_dimensions(self) -> Iterator[Request]:
        for steps in self._follow_ups.dimension_steps() if self._follow_ups is not None else ():
            yield from self._driver.start(steps)

    def _want(self, fqn: str) -> Iterator[Request | ev.AnyEvent]:
        if fqn in self._wanted:
            return
        self._wanted.add(fqn)
        for site in self.diagnosis.open_module(fqn):
            yield from self.questions.want(site)
        yield from self._judge((fqn,))

    def _judge(self, fqns: tuple[str, ...]) -> Iterator[Request | ev.AnyEvent]:
        for verdict in self.diagnosis.judge_open(fqns, self.questions.answer):
            yield module_judged(self.diagnosis, verdict)
            yield from self._follow(verdict)

    def _follow(self, verdict: ModuleVerdict) -> Iterator[Request | ev.AnyEvent]:
        """Below a module that fails, ask its submodules; below one that passes, all pass within it."""
        tree = self.diagnosis.tree
        if verdict.fqn == self.diagnosis.captured.prefix and verdict.outcome.passed:
            yield from self._driver.start(numbers_steps(self.diagnosis, verdict, self.questions.template))
        if self.diagnosis.options.exhaustive:
            return
        if not verdict.outcome.passed:
            if not self.diagnosis.options.search:
                return
            for child in list(tree.successors(verdict.fqn)):
                yield from self._want(child)
            return
        inside = sorted(below(tree, verdict.fqn) - self._wanted - self._inside_passing)
        if inside:
            self._inside_passing.update(inside)
            yield passing_inside(self.diagnosis, verdict, tuple(inside))

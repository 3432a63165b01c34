"""What is known of one part so far: its tree of calls, its modules' verdicts, and the failures that these show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from exportdoctor.core.failure.identity import each_violation, line_identity, same_failure, same_line
from exportdoctor.core.failure.messages import REFUSED_OUTPUT, UNSUPPORTED_INPUT
from exportdoctor.core.protocol.scan import Captured
from exportdoctor.core.records.outcome import Failure, Outcome
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run.report import NumbersCheck
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.call_tree import CallSite, below, call_tree, module_facts
from exportdoctor.engine.cure.search import CureSearch
from exportdoctor.engine.part.dimensions import Dimensions
from exportdoctor.engine.verdicts.failure_groups import FailureGroup, group_failures
from exportdoctor.engine.verdicts.judge import ModuleVerdict, SiteOutcome, blame_child, judge, shows_same_failure


@dataclass
class PartDiagnosis:
    """A part's state. PartScan and FollowUps add to it; the methods answer questions about it.

    - `open`: the call sites of each module that was asked for and has no verdict yet
    - `verdicts`: of the modules as they are; `own_code`: of those whose own code fails with the children replaced
    - `dimensions`: for a failure's key, the dynamic dimensions that it needs
    - `notes`: what a reader should know of a module, by FQN
    - `asked`: how many outcomes came in for modules as they are
    - `numbers`: how the program of a part that passes compares with eager
    - `ids`: each failure's number in the report, by its key
    - `is_over`: whether nothing more will be asked
    """

    captured: Captured
    options: ScanOptions
    versions: Mapping[str, str]
    target: TargetRef | None = None
    cure: CureSearch | None = None
    open: dict[str, tuple[CallSite, ...]] = field(default_factory=dict)
    verdicts: dict[str, ModuleVerdict] = field(default_factory=dict)
    own_code: dict[str, ModuleVerdict] = field(default_factory=dict)
    dimensions: dict[tuple[str, ...], Dimensions] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    ids: dict[tuple[str, ...], str] = field(default_factory=dict)
    asked: int = 0
    is_over: bool = False
    numbers: NumbersCheck | None = None
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.name = self.captured.part
        self.tree = call_tree(self.captured)
        self.facts = module_facts(self.tree)
        self.classes = {fqn: fact.class_name for fqn, fact in self.facts.items()}

    # --- modules

    @property
    def root(self) -> ModuleVerdict | None:
        """The verdict of the part's root, once it was asked."""
        return self.verdicts.get(self.captured.prefix)

    @property
    def failing(self) -> bool:
        """Whether the part's root fails, or one of the modules that were chosen."""
        if self.options.modules:
            return any(verdict.failing for verdict in self.verdicts.values())
        return self.root is None or self.root.failing

    @property
    def unknown(self) -> list[ModuleVerdict]:
        """The modules about which nothing is known, because exportdoctor itself failed or no GPU answers."""
        return [verdict for verdict in self.verdicts.values() if verdict.status == "unknown"]

    @property
    def dynamic(self) -> bool:
        """Whether the part has dynamic dimensions."""
        root = next(module for module in self.captured.modules if module.fqn == self.captured.prefix)
        return any(leaf.axes for leaf in root.calls[0].inputs)

    def first_modules(self) -> list[str]:
        """The modules to ask first: the root, those that were chosen, or every called module, the largest first."""
        if self.options.modules:
            return [fqn for fqn in self.options.modules if fqn in self.facts]
        if self.options.exhaustive:  # with the largest first, two processors are busy to the end
            sizes = {fqn: len(below(self.tree, fqn)) for fqn in self.facts}
            return sorted(sizes, key=lambda name: -sizes[name])
        return [self.captured.prefix]

    def open_module(self, fqn: str) -> tuple[CallSite, ...]:
        """A module is asked for; returns its call sites."""
        self.open[fqn] = tuple(CallSite(fqn, index) for index in range(len(self.facts[fqn].calls)))
        return self.open[fqn]

    def judge_open(self, fqns: Iterable[str], answer: Callable[[CallSite], SiteOutcome | None]) -> list[ModuleVerdict]:
        """Judge those of the open modules whose calls all have their `answer`; returns the new verdicts."""
        fresh = []
        for fqn in fqns:
            known = tuple((site, found) for site in self.open[fqn] if (found := answer(site)) is not None)
            if len(known) == len(self.open[fqn]):
                del self.open[fqn]
                self.verdicts[fqn] = judge(fqn, known)
                fresh.append(self.verdicts[fqn])
        return fresh

    # --- failures

    def failures(self) -> list[FailureGroup]:
        """Every failure that is known: those that modules show, and those that a cure brought to light."""
        shown = self.shown_failures()
        hidden = self._hidden_verdicts(shown)
        verdicts = [verdict for group in shown for verdict in group.verdicts] + hidden
        others = self._other_violations(verdicts)
        return group_failures(verdicts + others, self.classes) if hidden or others else shown

    def shown_failures(self) -> list[FailureGroup]:
        """The failures of modules, as far as it is known which module each belongs to."""
        both = [(verdict, self.own_code.get(verdict.fqn)) for verdict in self.placed_verdicts()]
        return group_failures([one for pair in both for one in pair if one is not None], self.classes)

    def placed_verdicts(self) -> list[ModuleVerdict]:
        """The failing modules' verdicts, as far as it is known whose failure each is."""
        failing = [fqn for fqn in self.facts if fqn in self.verdicts and self.verdicts[fqn].failing]
        return [verdict for fqn in failing if (verdict := self._placed_verdict(fqn)) is not None]

    def standing_verdicts(self, group: FailureGroup) -> list[ModuleVerdict]:
        """The group's verdicts, without those replaced by a later verdict on the module's own code."""
        return [verdict for verdict in group.verdicts if self.own_code.get(verdict.fqn, verdict) is verdict]

    def is_of_own_code(self, verdict: ModuleVerdict) -> bool:
        """Whether the verdict was found with the module's children replaced."""
        return self.own_code.get(verdict.fqn) is verdict

    def has_wrong_numbers(self, verdict: ModuleVerdict) -> bool:
        """Whether the module exports, and its program was found to compute otherwise than eager."""
        return verdict.fqn == self.captured.prefix and verdict.failing and self.numbers is not None

    def is_hidden(self, group: FailureGroup) -> bool:
        """Whether only the search for a cure met it, behind another failure."""
        met = self.cure.hidden_failures() if self.cure is not None else []
        return any(group.leading_verdict.outcome is outcome for outcome in met)

    def is_met_alone(self, group: FailureGroup) -> bool:
        """Whether submodules alone show it: the part was made to export, and no attempt at it ended in this; or torch
        refuses the inputs or outputs of a submodule, which inside the part are values of Python.

        Not known where a size or a value was fixed for it: that may hide it.
        """
        if self._is_of_boundary(group):
            return True
        return not any(verdict.fqn == self.captured.prefix for verdict in group.verdicts) and self._is_never_met(
            group.leading_verdict.outcome
        )

    def is_met_with_stand_ins(self, group: FailureGroup) -> bool:
        """Whether only a module whose children were replaced shows it: the part was made to export, and no attempt at
        it ended in this. A stand-in leaves out what its child sets."""
        return self.is_of_own_code(group.leading_verdict) and self._is_never_met(group.leading_verdict.outcome)

    def _is_never_met(self, mine: Outcome) -> bool:
        if self.cure is None or self.cure.prescription is None or self.cure.prescription.soundness == "specialised":
            return False
        passed = self.cure.stages or self.cure.cures[0].outcome.stages
        if mine.failure is not None and passed.get(mine.failure.stage) != "pass":
            return False  # the part did not get so far
        met = [outcome for trial in self.cure.trials for outcome in trial.outcomes]
        return not any(self.same_failure(one, mine) or _same_line_of_module(one, mine) for one in met)

    def _is_of_boundary(self, group: FailureGroup) -> bool:
        """Whether torch refuses what submodules are given, or what they give. Of what the part is given it refuses
        first, and what the part gives was seen in its forward."""
        failure = group.leading_verdict.outcome.failure
        if failure is None or any(one.fqn == self.captured.prefix for one in group.verdicts):
            return False
        if _says(failure, REFUSED_OUTPUT):
            own = self.captured.returned
            return own is not None and not any(_says(failure, f"Found {kind} in output") for kind in own)
        return failure.culprit is None and _says(failure, UNSUPPORTED_INPUT)

    def _hidden_verdicts(self, known: list[FailureGroup]) -> list[ModuleVerdict]:
        """Failures that the search for a cure met behind the first, and that no module showed."""
        if self.cure is None or self.open:
            return []  # a module may yet show it
        site = CallSite(self.captured.prefix, 0)
        return [
            judge(site.fqn, ((site, SiteOutcome(site, outcome)),))
            for outcome in self.cure.hidden_failures()
            if not any(self.same_failure(outcome, group.leading_verdict.outcome) for group in known)
        ]

    def _other_violations(self, verdicts: list[ModuleVerdict]) -> list[ModuleVerdict]:
        """Of failures that violate several dimensions those whose line no verdict has: each is a failure by itself.

        Not where an operator compares sizes, the part was made to export and no attempt at it met that: such a
        dimension may only follow from one that is cured.
        """
        found: list[ModuleVerdict] = []
        for verdict in verdicts if not self.open else ():
            for outcome in each_violation(verdict.outcome):
                told = any(self.same_failure(outcome, one.outcome) for one in (*verdicts, *found))
                may_follow = _is_of_operator(outcome) and (not self.is_over or self._is_never_met(outcome))
                if not (told or may_follow):
                    site = verdict.deciding.asked
                    found.append(judge(verdict.fqn, ((site, SiteOutcome(site, outcome)),)))
        return found

    def same_failure(self, one: Outcome, other: Outcome) -> bool:
        """Whether two attempts at this part failed in the same way."""
        return same_failure(one, other, exporter=self.options.exporter)

    def _placed_verdict(self, fqn: str) -> ModuleVerdict | None:
        """A failing module's verdict with its place; None while a child may still turn out to be the cause.

        Where no frame says whose code failed, a child that alone fails in the same way is to blame, and so on down.
        What has a line to blame is told before that is known: it stays the same failure wherever it is placed.
        """
        verdict = self.verdicts[fqn]
        children = list(self.tree.successors(fqn))
        if self._is_of_outputs(verdict):
            return verdict
        if verdict.located or not children or self.has_wrong_numbers(verdict) or not self.options.search:
            return verdict
        if not all(child in self.verdicts for child in children):
            return verdict if line_identity(verdict.outcome) and not verdict.outcome.status.ended_the_process else None
        guilty = next((child for child in children if shows_same_failure(verdict, self.verdicts[child])), None)
        if guilty is None:
            return verdict
        deeper = self._placed_verdict(guilty)
        return blame_child(verdict, deeper) if deeper is not None else None

    def _is_of_outputs(self, verdict: ModuleVerdict) -> bool:
        """Whether torch refuses what this module gives, and not what the part gives: that happens where the module is
        exported by itself, whatever its submodules give."""
        failure = verdict.outcome.failure
        if failure is None or not _says(failure, REFUSED_OUTPUT):
            return False
        return self.root is not None and not same_line(verdict.outcome, self.root.outcome)


def _says(failure: Failure, words: str) -> bool:
    return any(words in one.message for one in failure.exceptions)


def _is_of_operator(outcome: Outcome) -> bool:
    """Whether an operator of torch asked for the guard, not Python, which wants a number for itself."""
    return outcome.failure is not None and outcome.failure.guarded_by.startswith("aten.")


def _same_line_of_module(one: Outcome, other: Outcome) -> bool:
    """Whether both fail at one line of a module's code, which may be torch's own (torch.nn, torch.ao)."""
    lines = []
    for failure in (one.failure, other.failure):
        frames = failure.frames if failure is not None else ()
        inner = next((frame for frame in reversed(frames) if frame.module is not None), None)
        lines.append((inner.file, inner.line) if inner is not None else None)
    return lines[0] is not None and lines[0] == lines[1]

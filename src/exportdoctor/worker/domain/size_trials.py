"""The domain of a program: describes the sizes that it takes, and tries each boundary on both sides beside eager."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import psutil
import torch

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.core.records.size_domain import SizeAxis, SizeCondition, SizeDomain, SizeTrial, StageAnswer
from exportdoctor.report.wording import size_domains as wording
from exportdoctor.report.wording.export import MASKED_OUTPUTS
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import CallResult, run_calls
from exportdoctor.worker.domain.branch_line import branch_condition, branch_line
from exportdoctor.worker.domain.described_sizes import DescribedSize
from exportdoctor.worker.domain.linked_axes import join_linked
from exportdoctor.worker.domain.planned_trial import PlannedTrial
from exportdoctor.worker.domain.size_axes import Axis, is_plain, sizes_of_axes
from exportdoctor.worker.domain.size_checks import SizeChecks
from exportdoctor.worker.domain.size_rules import Run, ends_by_runs, evaluate_sizes, points_of, takes
from exportdoctor.worker.domain.size_values import assertions_on_values, is_about_values, with_other_numbers
from exportdoctor.worker.domain.sized_inputs import Place, SizedInputs
from exportdoctor.worker.domain.surrounded_memory import depends_on_other_memory
from exportdoctor.worker.domain.trial_outcomes import dropped_conditions, is_compared, is_right, outcomes_of
from exportdoctor.worker.domain.value_growth import ValueGrowth, measure_growth
from exportdoctor.worker.prove.compare_calls import compare_calls
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.object_walk import turn_flags
from exportdoctor.worker.prove.rounding import widen_to_rounding
from exportdoctor.worker.prove.tied_choices import excuse_ties

PROGRAM, SAVED = "exported program", "saved program"
_SMALL_GROWTH, _SMALL_SIZE = 8, 256
"""Sizes up to this, or up to so many times the example's, are tried in any case."""
_MOST_FIXED = _MOST_APART = 6
_SHARE_OF_MEMORY = 0.25


@dataclass(frozen=True, kw_only=True)
class TriedStage:
    """A stage that is tried: `run` gives its outputs for eager's inputs; `holder` has its buffers."""

    name: str
    run: Callable[[Inputs], Any]
    holder: torch.nn.Module = field(default_factory=torch.nn.Module)


@dataclass(kw_only=True)
class DomainSearch:
    """Finds the domain. `eager` is None for a program alone; `checks` is None where all its inputs are made of others'.

    `right` are inputs at which every stage is known to be right.
    """

    inputs: SizedInputs
    axes: list[Axis]
    stages: Sequence[TriedStage]
    eager: torch.nn.Module | None = None
    checks: SizeChecks | None = None
    seconds: float = 60.0
    seconds_for_ends: float = 15.0
    right: list[Inputs] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._conditions: list[SizeCondition] = []
        self._untried: list[str] = []
        self._not_made: list[str] = []
        self._only_nan: list[str] = []
        self._unsteady: list[str] = []
        self._masked: list[str] = []
        self._planned: dict[str, PlannedTrial] = {}
        self._tried: dict[str, SizeTrial] = {}
        self._asserted = assertions_on_values(self.stages[0].holder)
        self._facts: list[SizeAxis] = []
        self._compared: list[Inputs] = list(self.right)
        self._growths: dict[frozenset[Place], ValueGrowth] = {}

    def plan(self) -> None:
        """Evaluate the checks, run the program where these let any size pass, and choose the sizes of the trials."""
        self._facts = [self._fact_of(axis) for axis in self.axes]
        if self.checks is not None:
            join_linked(self.axes, self._facts, self.checks.find_violated, self._fact_of)
        end = time.monotonic() + self.seconds_for_ends
        self._facts = [
            ends_by_runs(fact, lambda size, axis=axis: self._run_at({axis.name: size}, end))  # type: ignore[misc]
            for axis, fact in zip(self.axes, self._facts, strict=True)
        ]
        self._add({}, wording.EXAMPLE)
        for axis, fact in zip(self.axes, self._facts, strict=True):
            if not axis.fixed:
                for size in self._points_of(axis, fact):
                    self._add(self._sizes({axis.name: size}), self._title(axis, size))
                    if size == 1:
                        self._add_turned(self._title(axis, size))
                place, described = self._description_of(axis)
                if described is not None:
                    size, numbers = axis.example + fact.step, self.inputs.paths[described.by]
                    self._add({place: size}, wording.apart(axis.name, size, numbers, wording.UNCHANGED), alone=True)
                for name, place in [*axis.same.items()][:_MOST_APART]:  # what follows from it, changed alone
                    size = self.inputs.size_at(place) + 1
                    shown = name if is_plain(name) else self.inputs.place_name(place)
                    self._add({place: size}, wording.apart(shown, size, axis.name, axis.example), alone=True)
        for axis in [one for one in self.axes if one.fixed][:_MOST_FIXED]:
            size = axis.example + 1
            self._add(self._sizes({axis.name: size}), wording.at_size(axis.name, size))

    def ask_eager(self, first: InputSet) -> None:
        """Run eager on what is planned, while no shim is applied. What it answers by NaN alone is left out.

        `first` is the example's set, which knows the outputs that a program may leave out. Answers are kept until all
        are there: those beyond a share of the free memory are not asked for.
        """
        end, room = time.monotonic() + self.seconds, _SHARE_OF_MEMORY * psutil.virtual_memory().available
        for title, one in list(self._planned.items()):
            if time.monotonic() > end or room < 0:
                self._leave_out(title)
            elif self.eager is not None and not one.ask(self.eager, first, self._other_numbers(one)):
                del self._planned[title]
                self._only_nan.append(title)
            room -= one.size_of_answer()

    def finish(self, others: Sequence[InputSet] = ()) -> SizeDomain:
        """Run the stages. `others` are sets that eager takes: those that a stage does not answer rightly are told."""
        end = time.monotonic() + self.seconds
        trials = []
        for title, planned in list(self._planned.items()):
            if time.monotonic() > end:
                self._leave_out(title)
            else:
                found = self._trial_if_steady(planned)
                trials += found
                self._tried.update((title, one) for one in found)
            planned.known = None  # its answers may be large
        known = {outcomes_of(one) for one in trials}
        tried = []
        for other in others:
            found = self._trial_if_steady(self._of_set(other)) if time.monotonic() < end else []
            tried += found
            self.right += [other.inputs for trial in found if is_right(trial)]
            self._compared += [other.inputs for trial in found if is_compared(trial)]
        told = [one for one in tried if not is_right(one)]
        for one in told:
            if outcomes_of(one) not in known or (one.condition < 0 and not one.holds):
                known.add(outcomes_of(one))
                trials.append(one)
        for condition in self.checks.conditions_on_values() if self.checks is not None else ():
            self._number(condition)
        return SizeDomain(
            axes=tuple(self._with_wrong(*one) for one in zip(self.axes, self._facts, strict=True)),
            conditions=tuple(self._conditions),
            trials=tuple(trials),
            dropped=dropped_conditions(trials),
            untried=tuple(self._untried),
            unsteady=tuple(self._unsteady),
            notes=(
                *((wording.sizes_not_made(self._not_made),) if self._not_made else ()),
                *((wording.only_nan(self._only_nan),) if self._only_nan else ()),
                *((wording.masked_at(self._masked),) if self._masked else ()),
                *((wording.drawn_sets(len(tried), len(told)),) if tried else ()),
            ),
        )

    # --- what the checks say

    def _fact_of(self, axis: Axis) -> SizeAxis:
        """Which sizes pass the checks, others as in the example."""
        places = tuple(self.inputs.place_name(place) for place in axis.rules)
        described = self._description_of(axis)[1]
        numbers = (self.inputs.paths[described.by],) if described is not None else ()
        equal = tuple(name for name, place in axis.same.items() if axis.is_itself_at(place))
        fact = SizeAxis(
            name=axis.name, example=axis.example, places=places, fixed=axis.fixed, same=equal,
            follows=(*(name for name in axis.same if name not in equal), *numbers),
            declared=self.inputs.declared.get(axis.name, (None, None)),
            only=(axis.example,) if axis.fixed else (), partly=self.inputs.order is None,
        )  # fmt: skip
        if self.checks is None or axis.fixed:
            return fact
        return evaluate_sizes(fact, self.checks.numbers, lambda size: self._passes(axis, size))

    def _passes(self, axis: Axis, size: int) -> bool:
        assert self.checks is not None
        return self.checks.refusal(self._sizes({axis.name: size})) is None

    def _sizes(self, values: Mapping[str, int]) -> dict[Place, int]:
        return self.inputs.with_described(sizes_of_axes(values, self.axes))

    def _description_of(self, axis: Axis) -> tuple[Place, DescribedSize | None]:
        """The place of the axis' size, and the whole numbers that say how large it is."""
        place = next(iter(axis.rules))
        return place, self.inputs.described_by(place)

    def _title(self, axis: Axis, size: int) -> str:
        """The axis' size, with the whole numbers that say it."""
        described = self._description_of(axis)[1]
        numbers = described.numbers(self.inputs.leaves, size) if described is not None else None
        if described is None or numbers is None:
            return wording.at_size(axis.name, size)
        return wording.at_described_size(axis.name, size, self.inputs.paths[described.by], numbers.tolist())

    def _points_of(self, axis: Axis, fact: SizeAxis) -> list[int]:
        """The sizes on both sides of each boundary; those that whole numbers can say, where some say the size."""
        described = self._description_of(axis)[1]
        if described is None:
            return points_of(fact)
        points = {*points_of(fact), *described.near(self.inputs.leaves)}
        points.discard(axis.example)
        return sorted(size for size in points if described.numbers(self.inputs.leaves, size) is not None)

    # --- what runs

    def _run_at(self, values: Mapping[str, int], end: float) -> Run:
        """What the program does at these sizes of axes."""
        sizes = self._sizes(values)
        if time.monotonic() > end or self._is_too_large(sizes) or not self._can_be_made(sizes):
            return "not asked"
        answer = self._answer(self.stages[0], None, self.inputs.resize(sizes))
        if answer.outcome != "refuses":
            return "answers"
        others = (self._answer(self.stages[0], None, made) for _, made in with_other_numbers(self.inputs, sizes))
        if any(one.outcome != "refuses" for one in others):
            return "answers"
        return "refuses values" if is_about_values(answer.message, self._asserted) else "refuses"

    def _add(self, sizes: dict[Place, int], title: str, *, alone: bool = False) -> None:
        if title in self._planned:
            return
        refused = self.checks.refusal(sizes) if self.checks is not None else None
        if refused is not None:
            self._number(refused)
        if not self._can_be_made(sizes):
            self._not_made.append(title)
        elif self._is_too_large(sizes):
            self._untried.append(title)
        else:
            self._planned[title] = PlannedTrial(
                title=title, inputs=self.inputs.resize(sizes, alone=alone), refused=refused, sizes=sizes
            )

    def _add_turned(self, title: str) -> None:
        """The trial of a size of one with other flags: a branch on that size may read other inputs."""
        plain = self._planned.get(title)
        turned = turn_flags(plain.inputs) if plain is not None else None
        if plain is not None and turned is not None:
            other = wording.with_numbers(title, wording.FLAGS_TURNED)
            self._planned[other] = replace(plain, title=other, inputs=turned)

    def _other_numbers(self, planned: PlannedTrial) -> Iterator[tuple[str, Inputs]]:
        """The trial's sizes with other whole numbers, each with a title."""
        for which, made in with_other_numbers(self.inputs, planned.sizes):
            yield wording.with_numbers(planned.title, which), made

    def _leave_out(self, title: str) -> None:
        del self._planned[title]
        self._untried.append(title)

    def _is_too_large(self, sizes: Mapping[Place, int]) -> bool:
        """Whether values of a run may have too many elements, by how they grew from the example to twice its size."""
        known = {place: self.inputs.size_at(place) for place in sizes}
        factor = max((size / max(1, known[place]) for place, size in sizes.items()), default=1.0)
        if factor <= _SMALL_GROWTH or all(size <= _SMALL_SIZE for size in sizes.values()):
            return False
        key = frozenset(sizes)
        if key not in self._growths:
            module = self.eager if self.eager is not None else self.stages[0].holder
            twice = self.inputs.resize({place: 2 * size for place, size in known.items()})
            self._growths[key] = measure_growth(module, self.inputs.example, twice)
        return self._growths[key].is_too_large(factor)

    def _can_be_made(self, sizes: Mapping[Place, int]) -> bool:
        """A size cannot grow where the example has no elements to repeat."""
        return all(at is None or self.inputs.size_at((leaf, at)) or not size for (leaf, at), size in sizes.items())

    def _trial_if_steady(self, planned: PlannedTrial) -> list[SizeTrial]:
        """The trial; none where a stage gives other numbers than eager, whose own answer depends on other memory."""
        trial = self._trial(planned)
        if any(answer.message == MASKED_OUTPUTS for answer in trial.answers):
            return []  # nothing was compared
        wrong = any(answer.outcome == "wrong" for answer in trial.answers)
        if not wrong or self.eager is None or not depends_on_other_memory(self.eager, planned.inputs):
            return [trial]
        self._unsteady.append(planned.title)
        return []

    def _trial(self, planned: PlannedTrial) -> SizeTrial:
        answers = tuple(self._answer(stage, planned.known, planned.inputs) for stage in self.stages)
        refused = planned.refused
        if refused is None and answers[0].outcome == "refuses" and self.checks is not None:
            refused = self.checks.condition_of_message(answers[0].message)
        if answers[0].outcome == "wrong" and refused is None and self.eager is not None:
            frame = branch_line(self.eager, self.inputs.example, planned.inputs)
            refused = branch_condition(frame) if frame is not None else None
        number = self._number(refused) if refused is not None else -1
        return SizeTrial(inputs=planned.title, answers=answers, eager=planned.said, condition=number)

    def _answer(self, stage: TriedStage, one: InputSet | None, inputs: Inputs) -> StageAnswer:
        try:
            calls = one.calls if one is not None else [inputs]
            made = run_calls(stage.holder, calls, how=stage.run)
        except Exception as error:
            message = f"{type(error).__name__}: {first_line(error, 200)}"
            return StageAnswer(stage=stage.name, outcome="refuses", message=message)
        if one is None:
            return StageAnswer(stage=stage.name, outcome="answers" if self.eager is None else "alone")
        row = compare_calls(one, made, tensors=True)
        if row.trouble == MASKED_OUTPUTS or wording.IGNORED in row.note:
            self._masked.append(one.title)
        if row.trouble == MASKED_OUTPUTS:
            return StageAnswer(stage=stage.name, outcome="right", message=row.trouble)
        if row.holds or row.says_nothing:  # NaN where eager gives NaN
            return StageAnswer(stage=stage.name, outcome="right", max_abs=row.max_abs)
        if self.eager is not None and self._is_excused(self.eager, one, made, row):
            return StageAnswer(stage=stage.name, outcome="right", max_abs=row.max_abs)
        return StageAnswer(stage=stage.name, outcome="wrong", max_abs=row.max_abs, message=row.trouble)

    def _is_excused(self, eager: torch.nn.Module, one: InputSet, made: Sequence[CallResult], row: Agreement) -> bool:
        """Whether it differs by its choice among equal values alone, or by no more than rounding does."""
        (tied,) = excuse_ties(
            eager, [one], [row], lambda other: compare_calls(other, made, tensors=True), lambda _: made
        )
        return tied.holds or widen_to_rounding(eager, [one], [row])[0].holds

    # --- conditions

    def _number(self, condition: SizeCondition) -> int:
        """Its number among the conditions; one that says the same is the same."""
        said = [(one.text, one.line) for one in self._conditions]
        if (condition.text, condition.line) not in said:
            self._conditions.append(condition)
            return len(said)
        return said.index((condition.text, condition.line))

    def _of_set(self, one: InputSet) -> PlannedTrial:
        """A set that eager has answered."""
        sizes = self.inputs.sizes_of(one.inputs)
        refused = self.checks.refusal(sizes) if self.checks is not None and sizes is not None else None
        return PlannedTrial(title=one.title, inputs=one.inputs, known=one, refused=refused)

    def _with_wrong(self, axis: Axis, fact: SizeAxis) -> SizeAxis:
        titles = [(size, self._title(axis, size)) for size in self._points_of(axis, fact)]
        turned = [(size, wording.with_numbers(title, wording.FLAGS_TURNED)) for size, title in titles]
        tried, others = (
            [(size, one, self._hangs_on_values(one)) for size, title in those if (one := self._tried.get(title))]
            for those in (titles, turned)
        )
        compared = self._sizes_in(fact, is_compared, self._compared)
        refused = [(size, by) for size, one, by in tried if one.answers[0].outcome == "refuses"]
        return msgspec.structs.replace(
            fact,
            wrong=tuple(
                dict.fromkeys(
                    size
                    for size, one, by in (*tried, *others)
                    if one.answers[0].outcome == "wrong" and not one.eager and not by
                )
            ),
            refused=tuple(
                size
                for size, one, by in tried
                if one.answers[0].outcome == "refuses"
                and not by
                and (self._is_unsaid(fact, size) or (fact.partly and not one.eager and takes(fact, size)))
            ),
            right=self._sizes_in(fact, is_right, self.right),
            by_values=tuple(
                size for size, by in refused if by and self._is_unsaid(fact, size) and size not in compared
            ),
            compared=None if self.eager is None or not self._tried else min(compared, default=-1),
        )

    def _hangs_on_values(self, trial: SizeTrial) -> bool:
        return is_about_values(trial.answers[0].message, self._asserted)

    def _is_unsaid(self, fact: SizeAxis, size: int) -> bool:
        """Whether nothing that was evaluated refuses the size."""
        return self.checks is not None and not fact.fixed and not fact.partly and takes(fact, size)

    def _sizes_in(
        self, fact: SizeAxis, counts: Callable[[SizeTrial], bool], others: Sequence[Inputs]
    ) -> tuple[int, ...]:
        """The axis' sizes in the inputs of the trials that count, and in others."""
        place = self.inputs.places()[fact.places[0]]
        known = [self._planned[title].inputs for title, one in self._tried.items() if counts(one)]
        sizes = [self.inputs.sizes_of(one) for one in (*known, *others)]
        return tuple(sorted({one[place] for one in sizes if one is not None}))

"""One pass over two stages side by side: every value with the reference's inputs and with its own.

The candidate runs twice, along with the reference: once on its own values, which shows what it inherits, and once with
each value replaced by the reference's as soon as it was compared, which shows what each step adds by itself. Where both
take the same a step runs once. Values are kept only as long as a step needs them.
"""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.numbers_ladder import CauseKind, Excuse, LadderCause, LadderValue, Side
from exportdoctor.report.wording import ladder as wording
from exportdoctor.worker.numbers.cause import join_facts, make_cause
from exportdoctor.worker.numbers.step_graph import (
    AxisOfChoice,
    Float64Run,
    GraphStep,
    StepGraph,
    UnrunnableStep,
    lowest_of,
)
from exportdoctor.worker.numbers.value_gap import (
    Gap,
    chooses_or_writes,
    gap_between,
    gap_in_words,
    inherited_gap,
    is_choosing,
    is_tie,
    is_unwritten,
    is_written_twice,
    judge_by_float64,
    no_gap,
    same_bits,
)
from exportdoctor.worker.prove.compare_outputs import LARGEST
from exportdoctor.worker.translate.failed_node import NodeFact, user_frame

_NEARLY = 1e-4
"""Values that are so near, as a share of the largest, may change places because of what was inherited."""

_UNKNOWN = 100
"""So many of the reference's values without a counterpart are known, at most."""

_SMALL = 64
"""Of so few elements it is worth to see whether both runs have the same: sizes, and what is made of them."""


class StepRaised(Exception):
    """A step of the candidate raised."""

    def __init__(self, step: GraphStep, error: Exception) -> None:
        super().__init__(first_line(error))
        self.step = step


@dataclass(kw_only=True)
class Walk:
    """The candidate's side. `expect` says which of its values the reference has, `compare` takes them in its order.

    `title` names the inputs, `prefix` is the part's place in the model. `by_own_size`: values that are small throughout
    are held to their own size, as the outputs are. `is_unsure`: some tie may be one of the candidate's values alone, of
    which the reference has none to compare.
    """

    graph: StepGraph
    inputs: Mapping[str, Any]
    title: str
    prefix: str = ""
    by_own_size: bool = False
    values: list[LadderValue] = field(default_factory=list)
    cause: LadderCause | None = None
    unmatched: int = 0
    ended: str = ""
    is_unsure: bool = False

    def expect(self, names: Iterable[str]) -> None:
        """The values of the candidate that will be compared, once each."""
        awaited = {name for name in names if name in self.graph.producer or name in self.graph.constants}
        awaited -= self.graph.reshape_patterns()
        self._awaited = awaited
        self._alive = self.graph.without_dead_steps(awaited)
        self._uses = Counter(name for place in self._alive for name in self.graph.steps[place].inputs)
        self._uses.update(awaited)
        self._uses.update(self.graph.outputs)
        self._given_names = {*self.graph.inputs, *self.graph.constants}
        self._in_order = self.graph.changes_values
        self._written = self.graph.written_constants() if self._in_order else set()
        self._fed: dict[str, Any] = {
            name: _copy(value) if self._in_order else value for name, value in self.inputs.items()
        }
        self._own: dict[str, Any] | None = None  # the same as `_fed` until a value differs
        self._ran: set[int] = set()
        self._done: set[str] = set()
        self._kept: dict[str, tuple[str, list[Any], bool]] = {}
        self._agreeing: dict[str, bool] = {}
        self._excused: set[str] = set()
        self._given: dict[int, list[Any]] = {}
        self._unknown: list[_Unknown] = []

    def compare(
        self,
        name: str,
        value: Any,
        fact: NodeFact | None,
        run_in_float64: Float64Run | None,
        *,
        taken: Sequence[torch.Tensor] = (),
        axis: AxisOfChoice = "unknown",
    ) -> None:
        """Take the reference's value that the candidate has under this name, '' for none; `fact` is its origin, `taken`
        are the tensors that it was computed from, where they are known, and `axis` is that of a choice."""
        if not isinstance(value, torch.Tensor) or self.ended:
            return
        if name not in self._awaited:
            self.unmatched += 1
            if fact is not None and self.cause is None:
                self._unknown = [
                    *self._unknown[-_UNKNOWN:],
                    _Unknown(weakref.ref(value), fact, [*map(weakref.ref, taken)]),
                ]
        elif name not in self._done:
            self._done.add(name)
            self._compare_at(name, value.detach(), fact, run_in_float64, taken, axis)

    def compare_weights(self, wanted: Iterable[tuple[str, torch.Tensor]], writers: Mapping[str, NodeFact]) -> None:
        """Take the reference's parameters and buffers by FQN; `writers` are the lines that changed some before."""
        for fqn, value in wanted:
            name = self.graph.weights.get(fqn, "")
            found = self.graph.constants.get(name)
            if not isinstance(found, torch.Tensor) or found.shape != value.shape or same_bits(found, value):
                continue
            gap = gap_between(found, value)
            if not gap.holds:
                owner, _, _ = fqn.rpartition(".")
                fact = writers.get(fqn) or NodeFact(name=fqn, op="", module=owner)
                kind: CauseKind = "state" if fqn in writers else "weight"
                self.blame(kind, gap_in_words(fqn, gap, found, value), fact)

    def compare_outputs(self, wanted: Sequence[Any], fact: NodeFact | None = None) -> None:
        """Take the reference's outputs, in the order of the candidate's."""
        for name, value in zip(self.graph.outputs, wanted):
            if name in self.inputs and name not in self._done:  # what it is given back: no step made it
                self._done.add(name)
                self._agreeing[name] = True
            if name not in self._done and isinstance(value, torch.Tensor) and not self.ended:
                self._done.add(name)
                known = next((one for one in self._unknown if _are_one(one.value(), value)), None)
                origin, taken = (known.fact, known.alive()) if known is not None and fact is None else (fact, ())
                self._compare_at(name, value.detach(), origin, None, taken)
            elif self._agreeing.get(name) and name not in self._excused and isinstance(value, torch.Tensor):
                self._compare_with_output(name, value.detach(), fact)

    def _compare_with_output(self, name: str, wanted: torch.Tensor, fact: NodeFact | None) -> None:
        """The candidate's output was compared, with a value of the reference that may be another than its output."""
        found = (self._own or self._fed).get(name)
        if found is None or gap_between(found, wanted, whole=True, computed_in=self.graph.lowest).holds:
            return
        self._agreeing[name] = False
        known = next((one.fact for one in self._unknown if _are_one(one.value(), wanted)), fact)
        self.blame("absent", wording.goes_on_after(name, _op_and_line(known) if known is not None else ""), known)

    @property
    def outputs_agree(self) -> bool:
        """Whether the candidate's own outputs are the reference's, within what is allowed of a stage's outputs."""
        return bool(self._agreeing) and all(self._agreeing.values())

    def blame(
        self, kind: CauseKind, message: str, fact: NodeFact | None, *, right: Side = "unknown", steps: int = 1
    ) -> None:
        """Name a cause, if there is none yet."""
        if self.cause is None:
            found = make_cause(kind, message, fact, title=self.title, prefix=self.prefix, right=right)
            self.cause = msgspec.structs.replace(found, steps=steps)

    def _compare_at(
        self,
        name: str,
        wanted: torch.Tensor,
        other: NodeFact | None,
        run: Float64Run | None,
        taken: Sequence[torch.Tensor] = (),
        axis: AxisOfChoice = "unknown",
    ) -> None:
        step = self.graph.step_of(name)
        fact = join_facts(step.fact() if step else None, other)
        try:
            before = set(self._ran)
            self._given = {}
            self._make(name)
            ran = self._ran - before
            fed, own = self._fed[name], (self._own or self._fed)[name]
        except UnrunnableStep as error:
            self.ended = str(error)
            return
        except StepRaised as error:
            self.ended = str(error)
            self.blame("raises", str(error), join_facts(error.step.fact(), other))
            return
        if wanted.is_complex() and isinstance(fed, torch.Tensor) and not fed.is_complex():
            wanted, run = torch.view_as_real(wanted.resolve_conj()), None  # as ONNX files hold complex numbers
        identical = same_bits(fed, wanted)
        short = lowest_of(self.graph.steps[place].reads for place in ran)
        local = no_gap(wanted)
        if not identical:
            local = gap_between(fed, wanted, computed_in=short, by_own_size=self.by_own_size)
        inherited = local if own is fed else inherited_gap(own, wanted, local)
        if self._own is None and not identical:  # values that share memory share it in the other run, too
            self._own = self._copy_of_all() if self._in_order else dict(self._fed)
            own = self._own[name]
        excuse: Excuse = "random" if step and step.effect == "random" else ""
        right: Side = "unknown"
        op, inputs, known = self._kept.pop(name, (fact.op, [], False))
        inputs, known = (list(taken), True) if taken and is_choosing(op) else (inputs, known)
        if not excuse and not local.holds and not local.trouble:
            if any(one is not None and is_unwritten(one.op) for one in (fact, other)):
                excuse = "unwritten"
            elif is_tie(op, fed, wanted, inputs, axis=axis):
                excuse = "tie"
                self.is_unsure |= not known or axis == "unknown"
            elif is_written_twice(op, fed, wanted, inputs, stands_for=[one.op for one in (fact, other) if one]):
                excuse = "duplicates"
            else:
                right, rounding = judge_by_float64(fed, wanted, run)
                excuse = "rounding" if rounding else ""
        self._note(name, fact, local, inherited, excuse)
        if name in self.graph.outputs:
            self._excused |= {name} if excuse else set()
            own_tie = excuse == "tie" and is_tie(op, own, wanted, inputs, axis=axis)
            self._agreeing[name] = (
                own_tie
                or (bool(excuse) and excuse != "tie")
                or (
                    gap_between(
                        own, wanted, whole=True, computed_in=self.graph.lowest, by_own_size=self.by_own_size
                    ).holds
                )
            )
        if not local.holds and not excuse:
            kind: CauseKind = "value" if fact.op else "weight"
            last = self.graph.producer.get(name)
            if last in ran and (other_input := self._find_other_input(name, taken, last)):
                self.blame("input", other_input, fact)
            self.blame(
                kind, gap_in_words(name, local, fed, wanted), fact, right=right, steps=self._count_uncompared(name)
            )
        if self.cause is None and not excuse and inherited.absolute >= LARGEST and _left_the_numbers(own, wanted):
            self.blame("value", wording.not_finite(name), fact)
        nearly = not excuse and not inherited.holds and is_tie(op, own, wanted, inputs, axis=axis, slack=_NEARLY)
        also_own = bool(excuse and excuse != "rounding") or nearly
        if self._own is not None and (also_own or not identical):
            self._replace(name, wanted, step, self._own if also_own else None)
        self._release(name)

    def _find_other_input(self, name: str, taken: Sequence[torch.Tensor], place: int) -> str:
        """What is said of a step that is not given all that the reference's operation was; empty where it is."""
        given = [one for one in self._given.get(place, []) if isinstance(one, torch.Tensor)]
        for wanted in taken if place in self._given else ():
            gaps = [gap_between(one, wanted.detach()) for one in given]
            if not any(gap.holds for gap in gaps):
                known = next((one for one in self._unknown if _are_one(one.value(), wanted)), None)
                trouble = gaps[0].trouble if len(gaps) == 1 else ""
                return wording.other_input(name, trouble, _op_and_line(known.fact) if known is not None else "")
        return ""

    def _count_uncompared(self, name: str) -> int:
        """How many steps lead to a value from values that were compared."""
        found: set[int] = set()
        waiting = [name]
        while waiting:
            place = self.graph.producer.get(waiting.pop())
            if place is not None and place not in found:
                found.add(place)
                waiting += [one for one in self.graph.steps[place].inputs if one not in self._done]
        return max(1, len(found))

    def _note(self, name: str, fact: NodeFact, local: Gap, inherited: Gap, excuse: Excuse) -> None:
        frame = user_frame(fact)
        self.values.append(
            LadderValue(
                name=name, op=fact.op, local=local.absolute, inherited=inherited.absolute, allowed=local.allowed,
                module=".".join(filter(None, (self.prefix, fact.module))), file=frame.file if frame else "",
                line=frame.line if frame else 0, excuse=excuse,
            )
        )  # fmt: skip

    def _keep_inputs(self, step: GraphStep, before: Mapping[str, Any]) -> None:
        """Remember what a choosing or writing step took, until its outputs are compared."""
        source = self._kept.get(step.inputs[0]) if step.inputs and "getitem" in step.op else None
        if source is not None or chooses_or_writes(step.op):
            known = step.inputs[:1] and (step.inputs[0] in self._done or step.inputs[0] in self._given_names)
            self._kept.update(dict.fromkeys(step.outputs, source or (step.op, list(before.values()), bool(known))))

    def _make(self, name: str) -> None:
        """Run all steps that a value needs, those in a row that can be joined as one."""
        if name in self.graph.constants:
            self._fetch([name])
        elif name not in self._fed:
            row: list[int] = []
            for place in self._needed_for(name):
                step = self.graph.steps[place]
                if self.graph.join is None or step.node is None or chooses_or_writes(step.op):
                    self._run(row)
                    self._run([place])
                    row = []
                else:
                    row.append(place)
            self._run(row)
        if name not in self._fed:
            raise UnrunnableStep(f"{name} is not there any more")

    def _fetch(self, names: Iterable[str]) -> None:
        """Put constants where steps find them, which are read from a file only now."""
        for name in names:
            if name not in self._fed and name in self.graph.constants and self._uses[name] > 0:
                value = self.graph.constants[name]
                self._fed[name] = _copy(value) if name in self._written else value
                if self._own is not None:
                    self._own[name] = _copy(value) if name in self._written else self._fed[name]

    def _copy_of_all(self) -> dict[str, Any]:
        """The values of the other run, which share memory as those of this run do; what nothing writes to is shared."""
        kept = {name: value for name, value in self._fed.items() if name in self.graph.constants}
        memo = {id(value): value for name, value in kept.items() if name not in self._written}
        return copy.deepcopy(self._fed, memo)

    def _needed_for(self, name: str) -> list[int]:
        last = self.graph.producer.get(name)
        if last is None:
            raise UnrunnableStep(f"{name} is made by nothing")
        if self._in_order:
            return [place for place in sorted(self._alive) if place <= last and place not in self._ran]
        found: set[int] = set()
        waiting = [name]
        while waiting:
            one = waiting.pop()
            place = self.graph.producer.get(one)
            if one not in self._fed and place is not None and place not in found and place not in self._ran:
                found.add(place)
                waiting += self.graph.steps[place].inputs
        return sorted(found)

    def _run(self, places: Sequence[int]) -> None:
        """Run steps in a row. What takes the same in both runs runs once."""
        steps = [self.graph.steps[place] for place in places]
        self._fetch(name for step in steps for name in step.inputs)
        for group, is_same in self._split_by_inputs(steps):
            inside = Counter(name for step in group for name in step.inputs)
            wanted = [name for step in group for name in step.outputs if self._uses[name] > inside[name]]
            before = {name: self._fed[name] for step in group for name in step.inputs if name in self._fed}
            if len(steps) == 1:
                self._given[places[0]] = list(before.values())
            made = self._outputs_of(group, wanted, before)
            if self._own is not None:
                mine = made
                if not is_same:
                    mine = self._outputs_of(group, wanted, {name: self._own[name] for name in before})
                    if group[0].effect != "random" and not self._in_order:
                        mine = {
                            name: made[name] if _are_small(value, made[name]) else value for name, value in mine.items()
                        }
                self._own.update(mine)
            self._fed.update(made)
            for step in group:
                self._keep_inputs(step, before)
            for name, times in inside.items():
                self._release(name, times)
        self._ran.update(places)

    def _split_by_inputs(self, steps: Sequence[GraphStep]) -> list[tuple[list[GraphStep], bool]]:
        """The steps that are given the same values in both runs, and then the others."""
        same: list[GraphStep] = []
        other: list[GraphStep] = []
        made: dict[str, bool] = {}
        for step in steps:
            is_same = self._own is None or (step.effect != "random" and not self._in_order)
            if is_same and self._own is not None:
                is_same = all(made.get(name, self._own.get(name) is self._fed.get(name)) for name in step.inputs)
            made.update(dict.fromkeys(step.outputs, is_same))
            (same if is_same else other).append(step)
        return [(group, group is same) for group in (same, other) if group]

    def _outputs_of(
        self, steps: Sequence[GraphStep], wanted: Sequence[str], values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What steps in a row make. Raises UnrunnableStep, or StepRaised with what one raised."""
        if len(steps) > 1 and self.graph.join is not None:
            with suppress(Exception):  # then one of them shows it
                return dict(zip(wanted, self.graph.join(steps, wanted, values), strict=True))
        known = dict(values)
        for step in steps:
            before = {name: known[name] for name in step.inputs if name in known}
            try:
                known.update(zip(step.outputs, step.run(before), strict=False))
            except UnrunnableStep:
                raise
            except Exception as error:
                raise StepRaised(step, error) from error
        return {name: known[name] for name in wanted if name in known}

    def _release(self, name: str, times: int = 1) -> None:
        self._uses[name] -= times
        if self._uses[name] <= 0:
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._fed.pop(name, None)
        if self._own is not None:
            self._own.pop(name, None)

    def _replace(
        self, name: str, wanted: torch.Tensor, step: GraphStep | None, own: dict[str, Any] | None = None
    ) -> None:
        """Put the reference's value in place of the candidate's; with `own` in that run, too."""
        for values in (self._fed,) if own is None else (self._fed, own):
            old = values.get(name)
            effect = step.effect if step else "new"
            if isinstance(old, torch.Tensor) and old.shape == wanted.shape and effect == "inplace":
                old.copy_(wanted)  # what shares its memory changes with it
            elif effect != "view" or own is not None:
                floats = isinstance(old, torch.Tensor) and old.is_floating_point() == wanted.is_floating_point()
                dtype = old.dtype if isinstance(old, torch.Tensor) and floats else wanted.dtype
                values[name] = wanted.to(dtype, copy=True)


@dataclass(frozen=True)
class _Unknown:
    """A value of the reference without a counterpart, where it comes from, and what it was computed from."""

    value: weakref.ref[torch.Tensor]
    fact: NodeFact
    taken: list[weakref.ref[torch.Tensor]]

    def alive(self) -> tuple[torch.Tensor, ...]:
        """What it was computed from, where all of that is still there."""
        found = [one() for one in self.taken]
        return () if any(one is None for one in found) else tuple(one for one in found if one is not None)


def _op_and_line(fact: NodeFact) -> str:
    frame = user_frame(fact)
    return f"{fact.op} at {frame.file}:{frame.line}" if frame is not None else fact.op


def _are_one(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    """Whether two tensors are one, or show the same memory in the same way."""
    if one is None or one.shape != other.shape or one.dtype != other.dtype or one.layout != torch.strided:
        return False
    return one is other or (one.numel() > 0 and one.data_ptr() == other.data_ptr() and one.stride() == other.stride())


def _are_small(one: Any, other: Any) -> bool:
    """Whether two values are small and the same."""
    return isinstance(other, torch.Tensor) and other.numel() <= _SMALL and same_bits(one, other)


def _left_the_numbers(own: Any, wanted: torch.Tensor) -> bool:
    """Whether an element is not finite that is finite in the reference: rounding alone never does that."""
    if not isinstance(own, torch.Tensor) or own.shape != wanted.shape or not own.is_floating_point():
        return False
    return bool((~own.isfinite() & wanted.isfinite()).any())


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value

"""Compares two stages of the ladder: whole runs with eager on every input set, and value by value on some."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import torch

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.numbers_ladder import LadderCause, LadderStage, LadderValue
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.report.wording import ladder as wording
from exportdoctor.shims import ExportCall
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import CallResult, copy_inputs, restore_afterwards, run_calls
from exportdoctor.worker.numbers.cause import make_cause
from exportdoctor.worker.numbers.eager_stream import EagerStream
from exportdoctor.worker.numbers.file_names import match_file, names_by_origin
from exportdoctor.worker.numbers.number_match import match_by_numbers
from exportdoctor.worker.numbers.program_steps import match_programs, names_by_place
from exportdoctor.worker.numbers.rung import Rung
from exportdoctor.worker.numbers.step_graph import Float64Run, GraphStep, UnrunnableStep, stream_values
from exportdoctor.worker.numbers.value_gap import forget_scratch
from exportdoctor.worker.numbers.walk import Walk
from exportdoctor.worker.prove.allowed_error import RELATIVE
from exportdoctor.worker.prove.compare_calls import compare_calls
from exportdoctor.worker.prove.compare_outputs import failed_run, tensors_in
from exportdoctor.worker.prove.fixed_numbers import name_fixed_numbers
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.rounding import excuse_rounding, is_below_floor
from exportdoctor.worker.prove.tied_choices import excuse_ties, is_tied
from exportdoctor.worker.translate.failed_node import NodeFact

EAGER = "eager"
_CHOICES = frozenset({"duplicates", "random"})


@dataclass(kw_only=True)
class Comparer:
    """Compares the stages of one part. `call` is the export whose program they come from, with its shims.

    `writers` are the lines of eager that change inputs and buffers, by set; `called` the submodules that it called on
    the example; `broken` the sets whose state an earlier stage lost, `excused` those that ties alone change,
    `differing` those on which an earlier stage gives other numbers; `misplaced` are values of a program that were taken
    for others of eager's.
    """

    part: BuiltPart
    call: ExportCall
    sets: Sequence[InputSet]
    doing: Callable[[str], None]
    writers: dict[str, dict[str, NodeFact]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)
    differing: set[str] = field(default_factory=set)
    misplaced: set[str] = field(default_factory=set)

    def stage(self, before: Rung | None, rung: Rung) -> LadderStage:
        """A stage beside the one before; `before` is None for eager."""
        was_frozen = gc.get_freeze_count() > 0
        gc.freeze()  # a walk makes many small objects: collecting the model's again would take longer than running it
        try:
            return self._compare_stage(before, rung)
        finally:
            forget_scratch()
            if not was_frozen:
                gc.unfreeze()

    def _compare_stage(self, before: Rung | None, rung: Rung) -> LadderStage:
        name = before.name if before is not None else EAGER
        self.doing(f"comparing {rung.name} with {name}")
        rows = [self._row(rung, one) for one in self.sets]
        rows = name_fixed_numbers(rows, self.sets, self.part.module, lambda one: [self._row(rung, one)])
        rows = excuse_ties(
            self.part.module, self.sets, rows, lambda one: self._row(rung, one), lambda one: self._answers(rung, one)
        )
        rows = excuse_rounding(self.part.module, self.sets, rows)
        rung.release()
        wrong = [one for one, row in zip(self.sets, rows, strict=True) if not row.holds]
        wrong.sort(key=lambda one: len(one.calls))  # of several calls one is walked
        made = LadderStage(name=rung.name, before=name, rows=tuple(rows))
        for one in dict.fromkeys([self.sets[0].title, *(one.title for one in wrong)]):
            made = self._add_walk(made, before, rung, next(given for given in self.sets if given.title == one), rows)
            if made.cause is not None or (one != self.sets[0].title and one not in made.excused):
                break
        tied = next((one for one, row in zip(self.sets, rows, strict=True) if is_tied(row)), None)
        if made.cause is None and tied is not None and tied.title not in made.walked:  # to say where
            made = self._add_walk(made, before, rung, tied, rows)
        if rung.pairs is not None:
            made = msgspec.structs.replace(made, notes=(*made.notes, wording.matched_by_numbers(len(rung.pairs))))
        if made.cause is not None and made.cause.kind == "state":
            self.broken.update(row.inputs for row in rows if row.trouble)
        self.differing.update(one.title for one in wrong)
        return made

    # --- rows: whole runs beside eager

    def _row(self, rung: Rung, one: InputSet) -> Agreement:
        try:
            answers = self._answers(rung, one)
        except Exception as error:
            row = failed_run(one.title, error)
            return msgspec.structs.replace(row, refused=one.made_up, made_up=one.made_up, kind=one.kind)
        lowered = _in_dtypes_of(one, answers)
        row = compare_calls(lowered, answers, tensors=True)
        if lowered is not one:
            row = _with_note(row)
        elif not row.holds and not row.trouble:
            row = _held_to(row, rung.computes_in, tensors_in(one.results[0].output))
        return row

    def _answers(self, rung: Rung, one: InputSet) -> Sequence[CallResult]:
        return run_calls(rung.holder, one.calls, how=lambda inputs: rung.run(self.call.convert(inputs)))

    # --- walks: one pass over two stages

    def _add_walk(
        self, made: LadderStage, before: Rung | None, rung: Rung, one: InputSet, rows: Sequence[Agreement]
    ) -> LadderStage:
        row = next(row for row in rows if row.inputs == one.title)
        walk: Walk | None = None
        notes: list[str] = []
        cause: LadderCause | None = None
        try:
            walk, cause = self._walk(before, rung, one, row)
            if row.holds and not is_tied(row) and cause is None and walk.cause is not None and rung.file is not None:
                notes.append(wording.unseen_error(walk.cause))
            notes += [wording.walk_ended(walk.ended)] if walk.ended and cause is None else []
        except Exception as error:
            kind = "" if isinstance(error, UnrunnableStep) else f"{type(error).__name__}: "
            notes.append(wording.walk_ended(f"{kind}{first_line(error)}"))
        if walk is not None and cause is None and walk.outputs_agree and not (row.holds or row.trouble):
            excuses = {value.excuse for value in walk.values}
            tied = "tie" in excuses and len(one.calls) == 1 and not walk.is_unsure  # of several calls eager was asked
            if one.title in self.excused or excuses & _CHOICES or tied:
                self.excused.add(one.title)
                made = msgspec.structs.replace(made, excused=(*made.excused, one.title))
            elif one.title not in self.differing and not walk.ended:
                notes.append(wording.not_seen_by_values(one.title))
        return msgspec.structs.replace(
            made,
            walked=(*made.walked, one.title),
            values=_merge_values(made.values, walk.values if walk else ()),
            unmatched=max(made.unmatched, walk.unmatched if walk else 0),
            cause=cause,
            notes=tuple(dict.fromkeys((*made.notes, *notes))),
        )

    def _walk(self, before: Rung | None, rung: Rung, one: InputSet, row: Agreement) -> tuple[Walk, LadderCause | None]:
        """The walk over the call of a set that shows most: of several the one that differs, or the last one."""
        *earlier, last = one.calls[: row.call + 1] if row.call else one.calls
        inputs = self.call.convert(copy_inputs(last))
        state = self._state_after(rung, earlier)
        graph = rung.steps(state)
        walk = Walk(
            graph=graph,
            inputs=rung.inputs(graph, inputs),
            title=one.title,
            prefix=self.part.prefix,
            by_own_size=not row.holds and (not row.trouble or bool(row.call)) and is_below_floor(row, one),
        )
        if before is None:
            self.writers[one.title] = self._walk_eager(walk, rung, earlier, last, one)
        else:
            self._walk_graph(walk, before, rung, earlier, inputs)
        cause = walk.cause
        if row.holds and rung.program is not None:  # the outputs agree: the values were mismatched
            wrong = {value.name for value in walk.values if value.local > value.allowed and not value.excuse}
            self.misplaced |= wrong if before is None else set()
            walk.values = [value for value in walk.values if value.name not in wrong]
            walk.unmatched += len(wrong)
        if row.holds:
            cause = None
        if cause is None and row.trouble and not row.refused and one.title not in self.broken:
            changed = self.writers.get(one.title) or self._eager_writers(one)
            fact = next((fact for name, fact in changed.items() if name in row.trouble), None)
            cause = make_cause("state", row.trouble, fact, title=one.title, prefix=self.part.prefix) if fact else None
        return walk, cause

    def _state_after(self, rung: Rung, calls: Sequence[Inputs]) -> dict[str, torch.Tensor]:
        """The buffers of a program after these calls."""
        if not calls or rung.program is None:
            return {}
        with torch.no_grad(), restore_afterwards(rung.holder):
            for one in calls:
                rung.run(self.call.convert(copy_inputs(one)))
            return {name: buffer.detach().clone() for name, buffer in rung.holder.named_buffers()}

    def _eager_writers(self, one: InputSet) -> dict[str, NodeFact]:
        """The lines that change inputs and buffers on a set, by name."""
        stream = EagerStream(module=self.part.module, names={})
        with restore_afterwards(self.part.module):
            for call in one.calls:
                stream.run(copy_inputs(call), argument_names=one.names)
        return stream.writers

    def _walk_eager(
        self, walk: Walk, rung: Rung, earlier: Sequence[Inputs], last: Inputs, one: InputSet
    ) -> dict[str, NodeFact]:
        names = names_by_place(rung.program) if rung.program is not None else {}
        found = {} if rung.program is not None else match_file(walk.graph)
        module = self.part.module
        placed = [one.name for several in names.values() for one in several if one.name not in self.misplaced]
        walk.expect([*placed, *found.values()])
        stream = EagerStream(module=module, names=names, modules=found)
        stream.on_module = lambda name, fact: self._on_module(walk, found, name, fact, example=one is self.sets[0])
        with restore_afterwards(module):
            for call in earlier:
                stream.run(copy_inputs(call), argument_names=one.names)
            writers = dict(stream.writers)
            kept = {name: value.detach() for name, value in module.state_dict(keep_vars=True).items()}
            walk.compare_weights(kept.items(), writers)
            stream.on_value = lambda *given: walk.compare(*given, taken=stream.taken, axis=stream.axis)
            output = stream.run(copy_inputs(last), argument_names=one.names)
        walk.compare_outputs(tensors_in(output))
        return {**writers, **stream.writers}

    def _on_module(self, walk: Walk, found: Mapping[str, str], name: str, fact: NodeFact, *, example: bool) -> None:
        """Eager enters a submodule that it did not enter on the example, and of which the file has nothing."""
        if example:
            self.called.add(name)
        elif found and name not in self.called and not any(f"{path}.".startswith(f"{name}.") for path in found):
            walk.blame("absent", wording.absent_module(name), fact)

    def _walk_graph(self, walk: Walk, before: Rung, rung: Rung, earlier: Sequence[Inputs], inputs: Inputs) -> None:
        source = before.steps(self._state_after(before, earlier))
        made = {name for step in source.steps for name in step.outputs}
        if before.program is not None and rung.program is not None:
            pairs = match_programs(before.program, rung.program)
        elif not rung.named:
            pairs = dict(self._pairs_by_numbers(before, rung))
        else:
            there = {*walk.graph.producer, *walk.graph.constants}
            pairs = {**names_by_origin(walk.graph), **{name: name for name in made if name in there}}
            pairs = {name: other for name, other in pairs.items() if name in made}
        outputs = dict(zip(source.outputs, walk.graph.outputs))
        pairs.update({name: other for name, other in outputs.items() if name in made})
        walk.expect(pairs.values())

        def tell(name: str, value: Any, step: GraphStep, high: Float64Run | None) -> None:
            walk.compare(pairs.get(name, ""), value, step.fact(), high, axis=source.axis_of(step))

        walk.compare_weights(
            ((fqn, source.constants[name]) for fqn, name in source.weights.items() if name in source.constants), {}
        )
        wanted = None
        if source.join is not None:  # nodes between two values that are compared run as one
            wanted = pairs
            walk.unmatched += len(made - pairs.keys())
        walk.compare_outputs(stream_values(source, before.inputs(source, copy_inputs(inputs)), tell, wanted=wanted))

    def _pairs_by_numbers(self, before: Rung, rung: Rung) -> dict[str, str]:
        """Values of the stage before with those of a file without its names, found on the example."""
        if rung.pairs is None:
            inputs = self.call.convert(copy_inputs(self.sets[0].inputs))
            one, other = before.steps({}), rung.steps({})
            rung.pairs = match_by_numbers(one, before.inputs(one, inputs), other, rung.inputs(other, inputs))
        return rung.pairs


def _in_dtypes_of(one: InputSet, answers: Sequence[Any]) -> InputSet:
    """The set with eager's floats in the dtypes that a file gives, where those are lower."""
    results = []
    for wanted, answer in zip(one.results, answers, strict=True):
        found, leaves = tensors_in(answer.output), tensors_in(wanted.output)
        pairs = zip(leaves, found, strict=False)
        other = [leaf.to(made.dtype) if _is_lower(made.dtype, leaf.dtype) else leaf for leaf, made in pairs]
        if len(found) != len(leaves) or all(new is old for new, old in zip(other, leaves, strict=True)):
            return one
        results.append(replace(wanted, output=other))
    return replace(one, results=tuple(results), disturbed=())


def _held_to(row: Agreement, dtype: torch.dtype | None, wanted: Sequence[torch.Tensor]) -> Agreement:
    """The row, by what is allowed of the dtype in which a file computes what it gives in a higher one."""
    floats = [one.dtype for one in wanted if one.is_floating_point() and one.dtype in RELATIVE]
    if dtype not in RELATIVE or not floats or not all(_is_lower(dtype, one) for one in floats):
        return row
    share = RELATIVE[dtype] / max(RELATIVE[one] for one in floats)
    return _with_note(msgspec.structs.replace(row, tolerance=row.tolerance * share))


def _with_note(row: Agreement) -> Agreement:
    return msgspec.structs.replace(row, note="; ".join(filter(None, (row.note, wording.LOWER_DTYPE))))


def _is_lower(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether both are floating, and the first has fewer bits."""
    return one.is_floating_point and other.is_floating_point and torch.finfo(one).bits < torch.finfo(other).bits


def _merge_values(known: Sequence[LadderValue], more: Sequence[LadderValue]) -> tuple[LadderValue, ...]:
    """Each value once, with its largest local error."""
    found = {one.name: one for one in known}
    for one in more:
        old = found.get(one.name)
        if old is None or one.local > old.local:
            found[one.name] = one
    return tuple(found.values())

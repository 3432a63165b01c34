"""An export under shims, and how the numbers of its program agree with those of eager without shims.

The program runs while the shims are active, because a program that takes a cache needs its registration; eager runs
before they are applied.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.core.records.probe import Probe
from exportdoctor.report.wording.export import DRAWS_IN_PYTHON, lost_subclass, unloadable_file, unrunnable_program
from exportdoctor.shims import ExportCall, Inputs, NotApplicable, Shim, apply_shims, export_program, find, order_shims
from exportdoctor.shims.own.keyword_names import keyword_names
from exportdoctor.shims.searches import keep_searches
from exportdoctor.targets.eager import run_calls
from exportdoctor.torch_internals.graph_modules import finish_graphs
from exportdoctor.torch_internals.program_checks import (
    asserted_text,
    guard_texts,
    guards_of,
    size_assertions,
    violated_assertions,
    violated_guards,
)
from exportdoctor.torch_internals.pytree_registry import inputs_in_traced_order
from exportdoctor.torch_internals.tensor_subclasses import name_with_functions
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.attempt.torchscript import export_torchscript
from exportdoctor.worker.export.program_file import why_unloadable
from exportdoctor.worker.prove.caught_in_export import caught_in_eager, note_caught, watch_export
from exportdoctor.worker.prove.compare_calls import compare_calls
from exportdoctor.worker.prove.compare_outputs import compare_outputs, failed_run, tensors_in
from exportdoctor.worker.prove.cure_inputs import cure_inputs, drawer_for
from exportdoctor.worker.prove.drawn_inputs import SetDrawer
from exportdoctor.worker.prove.empty_constants import find_empty_constant
from exportdoctor.worker.prove.fixed_numbers import name_fixed_numbers
from exportdoctor.worker.prove.input_set import InputSet, run_in_eager
from exportdoctor.worker.prove.other_way import name_other_way
from exportdoctor.worker.prove.own_buffers import own_buffers
from exportdoctor.worker.prove.python_extremes import note_extremes
from exportdoctor.worker.prove.read_texts import watch_texts
from exportdoctor.worker.prove.recorded_gradients import fails_with_gradients, held_to_traced
from exportdoctor.worker.prove.repeated_eager import leave_out_chance, why_unlike
from exportdoctor.worker.prove.rounding import has_halves, leave_out_rounding, widen_to_rounding
from exportdoctor.worker.prove.tied_choices import excuse_ties
from exportdoctor.worker.prove.unused_draws import states_of_generators, uses_draws
from exportdoctor.worker.translate.failed_node import describe_empty_constant

_USUAL_GUARD = re.compile(r"[^ ]+\.size\(\)\[\d+\] (>= [012]|== [^ ]+\.size\(\)\[\d+\])")
"""What torch.export asks of every dynamic size: at least two, and the same where the example's inputs share one."""
_LIMIT = re.compile(r"(?:<=?|>=?) (\d+)(?!\S)")
"""The number that a guard compares a size with."""
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
"""Of an assertion also those that it divides by."""
_EAGER_SECONDS = 10.0
"""Of processor time: after that no further set is made for a part that passes, so that the check stays cheap."""
_SLOW_SET = 0.3
"""Of processor time for the example in eager. Most shims that are tried export nothing: then the other sets are made
only for those that do."""

_OF_OTHER_VALUES = frozenset({"values", "others_between"})

SeeRefused = Callable[[Any, ExportCall, InputSet, Agreement], None]
"""Is called with a program, what was exported, a set that it refuses, and how."""


@keep_searches()
def shimmed_export(
    call: ExportCall,
    probe: Probe,
    *,
    files: Sequence[str],
    axes: Any,
    saving: Callable[[], AbstractContextManager[None]],
    go_on: Callable[[Any, ExportCall], None] = lambda program, given: None,
    see: Callable[[Any, ExportCall], None] = lambda program, given: None,
    see_refused: SeeRefused = lambda program, given, one, row: None,
    in_doubt: Callable[[], None] | None = None,
) -> tuple[Agreement, ...]:
    """Export `call` under the probe's shims; with `to` = run or compare, compare the program with eager.

    `saving` surrounds the export, not the runs. What goes on with the program does so under the shims, too; `go_on` and
    `see` are called with it and what was exported, `see_refused` with a set that it refuses, too. Sets are drawn when
    the program agrees on those that are known, since most shims that are tried export nothing; to compare, only sets
    of sizes that the program refuses and eager takes. Where eager is slow, `in_doubt` is called after an export that
    succeeds: it ends the attempt, so that another one, without it, makes all sets first.
    Raises what the export raises, what `go_on` raises, NotApplicable and ShimTrouble.
    """
    shims = order_shims([find(name, files=files, axes=axes) for name in probe.shims])
    compares = probe.to in ("run", "compare")
    # the sets are made before the export can leave anything behind
    sets, is_complete = _make_known_sets(call, probe, all_of_them=in_doubt is None) if compares else ((), True)
    treated = dataclasses.replace(call, options=_options(call, probe))
    # outside of the shims, of which some change what the text of a size is
    with watch_texts() as say_texts, apply_shims(shims, treated) as given:
        if not EXPORTERS[probe.exporter].makes_program:
            export_torchscript(given.module, given.args, given.kwargs, None)
            return ()
        strict = given.options.strict  # then dynamo reads the functions, and runs none of them
        with nullcontext() if strict else saving(), watch_export(on=compares and not probe.shims) as caught_there:
            program = export_program(given)
            finish_graphs(program)
        see(program, given)
        if in_doubt is not None and not is_complete:
            in_doubt()
        if not sets:
            go_on(program, given)
            return ()
        if (empty := find_empty_constant(program)) is not None:
            return (Agreement(inputs=sets[0].title, kind="example", trouble=describe_empty_constant(empty)),)
        try:
            ready = program.module()  # a run leaves it as it was
        except Exception as error:
            trouble = unrunnable_program(error, keyword_names(program))
            return (Agreement(inputs=sets[0].title, kind="example", trouble=trouble),)
        own_buffers(ready)
        proof = _CureProof(
            call=call,
            probe=probe,
            shims=shims,
            treated=treated,
            given=given,
            program=program,
            ready=ready,
            see_refused=see_refused,
        )
        known = proof.compare_known(sets)
    if not known.agrees:
        known = proof.hold_known(known)
    if known.rows[0].says_nothing:
        return known.rows
    caught = "; ".join(filter(None, (say_texts(), note_extremes(program), *given.notes)))
    if caught_there:
        raised = note_caught(caught_there, caught_in_eager(call.module, (one.calls for one in known.sets)))
        caught = "; ".join(filter(None, (raised, caught)))
    if not known.agrees and not proof.only_refuses(known.rows):
        return proof.explain_difference(known, caught)
    return proof.compare_drawn(known, caught, is_complete=is_complete)


@dataclass(frozen=True, kw_only=True)
class _KnownSets:
    """The known input sets, and how the program agrees with eager on each.

    `unloadable` is why its file cannot be loaded, `graded` what fails once gradients are recorded, `chance` what is
    said of sets that are left out.
    """

    sets: tuple[InputSet, ...]
    rows: tuple[Agreement, ...]
    agrees: bool
    unloadable: str = ""
    graded: str = ""
    chance: str = ""


@dataclass(frozen=True, kw_only=True)
class _CureProof:
    """A program that was exported under shims, held to eager without them.

    `treated` is what the shims are applied to, and `given` what they made of it, which was exported. `ready` is the
    program as a module.
    """

    call: ExportCall
    probe: Probe
    shims: Sequence[Shim]
    treated: ExportCall
    given: ExportCall
    program: Any
    ready: torch.nn.Module
    see_refused: SeeRefused

    def compare_known(self, sets: tuple[InputSet, ...]) -> _KnownSets:
        """How the program agrees on the known sets. Call it while the shims are active."""
        rows = tuple(self._ask(self.given, one) for one in sets)
        graded = ""
        if self._is_proof and rows[0].holds:
            graded = fails_with_gradients(self.call.module, self.ready, self.given.convert, sets[0])
        agrees = self._all_hold(rows)
        unloadable = why_unloadable(self.program) if agrees or self.only_refuses(rows) else ""
        return _KnownSets(sets=sets, rows=rows, agrees=agrees, unloadable=unloadable, graded=graded)

    # what follows is called while no shim is active; `_compare` applies them again

    def hold_known(self, known: _KnownSets) -> _KnownSets:
        """The same, held to eager."""
        sets, rows, chance = self._hold_to_eager(known.sets, known.rows)
        unloadable, agrees = "", self._all_hold(rows)
        if agrees or self.only_refuses(rows):
            with apply_shims(self.shims, self.treated):
                unloadable = why_unloadable(self.program)
        return _KnownSets(
            sets=tuple(sets),
            rows=tuple(rows),
            agrees=agrees,
            unloadable=unloadable,
            graded=known.graded,
            chance=chance,
        )

    def only_refuses(self, rows: Sequence[Agreement]) -> bool:
        """Whether shims that fix something make it refuse sets, and it agrees on the others."""
        return self._may_refuse and all(row.refused or self._holds(row) for row in rows)

    def explain_difference(self, known: _KnownSets, caught: str) -> tuple[Agreement, ...]:
        """The rows of a program that differs, with what is known of the reason; `caught` is what the export met."""
        strict = self.treated.options.strict
        why = "; ".join(filter(None, (caught, "" if strict else _lost_subclass(self.call))))
        rows = [row if row.holds else _with_notes([row], why)[0] for row in known.rows]
        named = name_fixed_numbers(rows, known.sets, self.call.module, self._compare)
        is_explained = self.probe.shims or why or named != rows or strict
        return tuple(named if is_explained else name_other_way(rows, known.sets, self.call.module, self._export_again))

    def compare_drawn(self, known: _KnownSets, caught: str, *, is_complete: bool) -> tuple[Agreement, ...]:
        """The rows of a program that agrees on the known sets, and those of drawn ones."""
        unloadable = unloadable_file(known.unloadable) if known.unloadable else ""
        rows = _with_notes(known.rows, unloadable, known.graded, known.chance, caught)
        example = known.sets[0]
        drawer = drawer_for(self.call, example, sizes=known.agrees)
        if self.probe.to == "compare":
            small = drawer.draw_ones_and_zeros() if is_complete else ()
            asked, more, chance = self._hold(*small, *self._drawn_refused(drawer), *drawer.draw_where_read())
            more = name_other_way(more, asked, self.call.module, self._export_again)
            return (*_with_notes(rows, chance), *more)
        if not _gives_the_same(self.call, example):
            return tuple(rows)
        drawn = (
            *(() if known.agrees else drawer.draw_each_size()),
            *drawer.draw_least(),
            *drawer.draw(),
            *self._drawn_refused(drawer, numbers=bool(self.probe.shims)),
        )
        asked, found, chance = self._hold(*drawn)
        may_refuse = self._may_refuse
        wrong = next((at for at, row in enumerate(found) if not (row.holds or (may_refuse and row.refused))), None)
        if wrong is not None:
            _, nearer, _ = self._hold(*drawer.shrink(asked[wrong]))
            found[wrong] = next((row for row in nearer if not row.holds), found[wrong])
        return (*_with_notes(rows, chance), *found)

    @property
    def _is_proof(self) -> bool:
        return bool(self.probe.shims) and self.probe.to == "run"

    @property
    def _may_refuse(self) -> bool:
        return self._is_proof and any(shim.soundness == "specialised" for shim in self.shims)

    def _ask(self, given: ExportCall, one: InputSet) -> Agreement:
        row = compare_set(self.ready, given, one)
        if row.refused and row.kind in _OF_OTHER_VALUES and any(shim.asserts for shim in self.shims):
            row = msgspec.structs.replace(row, made_up=True)  # as its values are
        if row.refused and row.kind != "size_one_or_zero":
            self.see_refused(self.program, given, one, row)
        return row

    def _compare(self, *those: InputSet) -> list[Agreement]:
        with apply_shims(self.shims, self.treated) as given:
            return [self._ask(given, one) for one in those]

    def _export_again(self) -> None:
        with apply_shims(self.shims, self.treated) as given:
            export_program(given)

    def _holds(self, row: Agreement) -> bool:
        """Also where a cure is wrong on inputs in another memory layout, which is a condition of it."""
        return row.holds or (bool(self.probe.shims) and row.kind == "layout" and not row.refused)

    def _all_hold(self, rows: Sequence[Agreement]) -> bool:
        return all(map(self._holds, rows))

    def _hold(self, *those: InputSet) -> tuple[list[InputSet], list[Agreement], str]:
        """These sets and their rows, without those on which rounding alone moves eager as far."""
        kept, rows, chance = self._hold_to_eager(those, self._compare(*those))
        kept, rows, rounding = leave_out_rounding(self.call.module, kept, rows)
        return kept, rows, "; ".join(filter(None, (chance, rounding)))

    def _hold_to_eager(
        self, sets: Sequence[InputSet], rows: Sequence[Agreement]
    ) -> tuple[list[InputSet], list[Agreement], str]:
        """The sets and their rows, held to what eager gives with gradients and to how far rounding moves it, without
        those that eager answers by chance, and what is said of these."""
        module = self.call.module
        first_rounding = any(map(has_halves, sets))  # explains nearly every difference there
        if not first_rounding:
            rows = held_to_traced(module, sets, rows, self._compare)
        kept, rows, chance = leave_out_chance(module, sets, rows)
        rows = excuse_ties(module, kept, rows, lambda one: self._compare(one)[0])
        rows = widen_to_rounding(module, kept, rows)
        if first_rounding and (traced := held_to_traced(module, kept, rows, self._compare)) != rows:
            rows = widen_to_rounding(module, kept, traced)
        return kept, rows, chance

    def _drawn_refused(self, drawer: SetDrawer, *, numbers: bool = False) -> Iterator[InputSet]:
        """Sets of sizes that the program refuses by a guard, if it has one that is about more than two rows and alike
        sizes, or by an assertion about sizes; also of `numbers`, which shims make sizes."""
        guards, assertions = guards_of(self.ready), size_assertions(self.program)

        def leaves_of(inputs: Inputs) -> list[Any] | None:
            try:
                return inputs_in_traced_order(self.program, *self.given.convert(inputs))
            except Exception:
                return None  # the conversion needs others

        def refuses(inputs: Inputs) -> str:
            leaves = leaves_of(inputs)
            if leaves is None:
                return ""
            guard = next(iter(violated_guards(guards, leaves)), "") if guards is not None else ""
            if guard:  # it is asked first
                return guard if has_unusual else ""
            return next(map(asserted_text, violated_assertions(assertions, leaves)), "")

        example = leaves_of(drawer.known[0])
        if example is None:
            return
        texts = guard_texts(guards, example) if guards is not None else []
        has_unusual = not all(map(_USUAL_GUARD.fullmatch, texts))
        if has_unusual or assertions:
            limits = {int(limit) for text in texts for limit in _LIMIT.findall(text)}
            limits |= {int(number) for node in assertions for number in _NUMBER.findall(asserted_text(node))}
            yield from drawer.draw_refused(refuses, limits=limits, numbers=numbers)


def _lost_subclass(call: ExportCall) -> str:
    names = map(name_with_functions, tree_leaves((call.args, call.kwargs)))
    name = next(filter(None, names), "")
    return lost_subclass(name) if name else ""


def _with_notes(rows: Sequence[Agreement], *notes: str) -> list[Agreement]:
    """The rows, with these notes on the first."""
    first, *rest = rows
    return [msgspec.structs.replace(first, note="; ".join(filter(None, (first.note, *notes)))), *rest]


def _make_known_sets(call: ExportCall, probe: Probe, *, all_of_them: bool) -> tuple[tuple[InputSet, ...], bool]:
    """The known input sets, and whether these are all: with shims and a slow eager only the example is made."""
    begun, known = time.process_time(), _known_sets(call, probe)
    first = next(known)
    if probe.shims and not all_of_them and time.process_time() - begun > _SLOW_SET:
        known.close()
        return (first,), False
    return (first, *known), True


def _known_sets(call: ExportCall, probe: Probe) -> Generator[InputSet, None, None]:
    """The known input sets. Without shims those that eager answers within some seconds, the example in any case.

    Raises NotApplicable where the program of a part that passes cannot be held to eager, which answers by chance, and
    where eager draws from Python's or NumPy's generator, which no program does.
    """
    began, first = time.process_time(), None
    before = states_of_generators()
    for one in cure_inputs(call):
        drew = first is None and states_of_generators() != before
        if drew and uses_draws(partial(run_calls, call.module, one.calls * 2)):
            raise NotApplicable(DRAWS_IN_PYTHON)
        first = first or one
        is_again = not probe.shims and one.kind == "called_again"
        if is_again and (why := why_unlike(call.module, first.results[0], one.results[0])):
            raise NotApplicable(why)
        yield one
        if not probe.shims and time.process_time() - began > _EAGER_SECONDS:
            return


def _gives_the_same(call: ExportCall, example: InputSet) -> bool:
    """Whether eager still gives what it gave before any shim was applied; else nothing drawn can be held to it."""
    again = run_in_eager(call.module, [example.inputs])
    found, wanted = (tensors_in(results[0].output) if results else [] for results in (again, example.results))
    return compare_outputs("", found, wanted).holds


def _options(call: ExportCall, probe: Probe) -> Any:
    return dataclasses.replace(call.options, strict=EXPORTERS[probe.exporter].traces_with_dynamo)


def compare_set(ready: torch.nn.Module, given: ExportCall, one: InputSet) -> Agreement:
    """How the program agrees with eager on this set."""

    asked = 0

    def call(inputs: Inputs) -> Any:
        nonlocal asked
        asked += 1
        args, kwargs = given.convert(inputs)
        return ready(*args, **kwargs)

    try:
        return compare_calls(one, run_calls(ready, one.calls, how=call))
    except Exception as error:
        is_between = asked and one.calls[asked - 1] is not one.calls[0]
        title = f"{one.title} (in the call between)" if is_between else one.title
        return msgspec.structs.replace(failed_run(title, error), refused=True, made_up=one.made_up, kind=one.kind)

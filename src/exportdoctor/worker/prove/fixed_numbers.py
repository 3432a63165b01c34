"""Attributes that eager changes from call to call and a program has fixed: a counter, a flag, a tensor.

Whether such a value is why a program differs is asked: with it put back before each call, eager must compute what the
program does. A buffer that forward assigns, and that the program leaves as it was, is named with its line, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch

from exportdoctor.core.records.outcome import Agreement, Frame
from exportdoctor.report.wording import export as wording
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import copy_inputs, restore_afterwards
from exportdoctor.targets.iterator_places import PLAIN_KINDS
from exportdoctor.targets.plain_state import without_writes
from exportdoctor.worker.prove.assignments import Assignments, find_assignments
from exportdoctor.worker.prove.compare_calls import KEEPS_STATE
from exportdoctor.worker.prove.input_set import InputSet, run_in_eager

_MOST_NAMES = 8

Places = Mapping[str, tuple[torch.nn.Module, str, Any]]
"""Each value's path, with the module that holds it, its name there, and what it is between calls."""

Compare = Callable[[InputSet], Sequence[Agreement]]
"""Runs the program on a set; the one row of the comparison with the set's results."""


def name_fixed_numbers(
    rows: Sequence[Agreement], sets: Sequence[InputSet], module: torch.nn.Module, compare: Compare
) -> list[Agreement]:
    """The rows, of which those that differ because of such values name them."""
    return [_with_names(row, one, module, compare) for row, one in zip(rows, sets, strict=True)]


def _with_names(row: Agreement, one: InputSet, module: torch.nn.Module, compare: Compare) -> Agreement:
    if row.holds or row.refused or not (row.buffers or KEEPS_STATE in row.trouble):
        return row
    assigned = find_assignments(module, one.calls)
    if KEEPS_STATE in row.trouble and (names := _names_of_fixed(one, module, compare, assigned)):
        lines = {name: assigned[name].line if name in assigned else None for name in names}
        why = f" in {wording.with_lines(lines)}, and the program has the value of the export at every call"
        at = _first_of(line for line in lines.values() if line is not None)
        return msgspec.structs.replace(row, trouble=f"{row.trouble}{why}", at=at)
    places = {name: assigned[name] for name in row.buffers if name in assigned}
    if not places:
        return row
    where = {name: one.line for name, one in places.items()}
    change = next((one.change for one in places.values() if one.change), "")
    why = f": a call assigns {wording.with_lines(where)}{change}"
    return msgspec.structs.replace(row, trouble=f"{row.trouble}{why}", at=_first_of(where.values()))


def _first_of(lines: Iterable[Frame]) -> tuple[Frame, ...]:
    """The first of these lines, as a stack of one frame; none where there is none."""
    return tuple(lines)[:1]


def _names_of_fixed(one: InputSet, module: torch.nn.Module, compare: Compare, assigned: Assignments) -> list[str]:
    """The values because of which the program differs; empty where none is known."""
    places = _changed_places(module, one, assigned)
    if places and _agrees_with(places, one, module, compare):
        for name in list(places):
            fewer = {other: place for other, place in places.items() if other != name}
            if fewer and _agrees_with(fewer, one, module, compare):
                places = fewer
        return list(places)
    others = [name for name in _names_changed_by(one) if name not in places]  # these alone are not why
    is_plain = len(others) == 1 and bool(without_writes(one.results[-1].numbers[others[0]]))
    return others if is_plain and _agrees_restored(one, module, compare) else []


def _names_changed_by(one: InputSet) -> list[str]:
    """The paths of plain values, and of what holds such, that are not the same after each call of the set."""
    seen = [result.numbers for result in one.results]
    return [name for name in seen[-1] if len({repr(numbers.get(name)) for numbers in seen}) > 1]


def _changed_places(module: torch.nn.Module, one: InputSet, assigned: Assignments) -> Places:
    """The plain values and tensors on modules that a call of the set has changed, of tensors those that it assigned."""
    places: dict[str, tuple[torch.nn.Module, str, Any]] = {}
    for path, child in module.named_modules():
        for name, value in vars(child).items():
            place = f"{path}.{name}".lstrip(".")
            if isinstance(value, PLAIN_KINDS) or (isinstance(value, torch.Tensor) and place in assigned):
                places[place] = child, name, value
    tensors = [
        name
        for name, (_, _, value) in places.items()
        if isinstance(value, torch.Tensor) or (value is None and name in assigned)
    ]
    changed = [name for name in dict.fromkeys((*_names_changed_by(one), *tensors)) if name in places]
    return {name: places[name] for name in changed[:_MOST_NAMES]}


def _agrees_with(places: Places, one: InputSet, module: torch.nn.Module, compare: Compare) -> bool:
    """Whether the program computes what eager does with these values put back before each call."""

    def call(inputs: Inputs) -> Any:
        for child, name, value in places.values():
            setattr(child, name, value)
        return module(*inputs[0], **inputs[1])

    return _agrees_where(call, one, module, compare)


def _agrees_restored(one: InputSet, module: torch.nn.Module, compare: Compare) -> bool:
    """Whether the program computes what eager does with all that the module holds put back after each call."""

    def call(inputs: Inputs) -> Any:
        with restore_afterwards(module):
            return copy_inputs(module(*inputs[0], **inputs[1]))

    return _agrees_where(call, one, module, compare)


def _agrees_where(call: Callable[[Inputs], Any], one: InputSet, module: torch.nn.Module, compare: Compare) -> bool:
    results = run_in_eager(module, one.calls, how=call)
    return results is not None and all(row.holds for row in compare(replace(one, results=results)))

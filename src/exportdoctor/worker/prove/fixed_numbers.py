"""Plain values that eager changes from call to call and a program has fixed: a counter, a flag, a position.

Whether such a value is why a program differs is asked: with it put back before each call, eager must compute what the
program does.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from exportdoctor.core.records.outcome import Agreement
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import copy_inputs, restore_afterwards
from exportdoctor.targets.plain_state import without_writes
from exportdoctor.worker.prove.compare_calls import KEEPS_STATE
from exportdoctor.worker.prove.input_set import InputSet, run_in_eager

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
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
    if row.holds or row.refused or KEEPS_STATE not in row.trouble:
        return row
    names = _names_of_fixed(one, module, compare)
    if not names:
        return row
    return msgspec.structs.replace(
        row,
        trouble=f"{row.trouble} in {', '.join(names)}, and the program has the value of the export at every call",
    )


def _names_of_fixed(one: InputSet, module: torch.nn.Module, compare: Compare) -> list[str]:
    """The values because of which the program differs; empty where none is known."""
    places = _changed_places(module, one)
    if places and _agrees_with(places, one, module, compare):
        for name in list(places):
            fewer = {other: place for other, place in places.items() if other != name}
            if fewer and _agrees_with(fewer, one, module, compare):
                places = fewer
        return [f"{name}{_line_of(*place[:2])}" for name, place in places.items()]
    others = [name for name in _names_changed_by(one) if name not in places]  # these alone are not why
    is_plain = len(others) == 1 and bool(without_writes(one.results[-1].numbers[others[0]]))
    return others if is_plain and _agrees_restored(one, module, compare) else []


def _names_changed_by(one: InputSet) -> list[str]:
    """The paths of plain values, and of what holds such, that are not the same after each call of the set."""
    seen = [result.numbers for result in one.results]
    return [name for name in seen[-1] if len({repr(numbers.get(name)) for numbers in seen}) > 1]


def _changed_places(module: torch.nn.Module, one: InputSet) -> Places:
    """The plain values on modules that a call of the set has changed."""
    places: dict[str, tuple[torch.nn.Module, str, Any]] = {}
    for path, child in module.named_modules():
        for name, value in vars(child).items():
            if isinstance(value, _PLAIN):
                places[f"{path}.{name}".lstrip(".")] = child, name, value
    changed = [name for name in _names_changed_by(one) if name in places]
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


def _line_of(module: torch.nn.Module, name: str) -> str:
    """Where the module's class changes the value, ` (file:line)`; empty where no line of it is found."""
    for kind in type(module).__mro__:
        try:
            lines, first = inspect.getsourcelines(kind)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        for method in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            found = None if method.name == "__init__" else next(_writes_of(method, name), None)
            if found is not None:
                return f" ({Path(inspect.getfile(kind)).name}:{first + found - 1})"
    return ""


def _writes_of(method: ast.FunctionDef, name: str) -> Iterator[int]:
    """The lines at which a method assigns that attribute of its first argument."""
    owner = next((one.arg for one in method.args.args), None)
    for node in ast.walk(method):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr == name and ast.unparse(target.value) == owner:
                    yield node.lineno

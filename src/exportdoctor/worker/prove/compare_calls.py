"""Compares the calls of a program with those of eager: the outputs, and what is left in the inputs and the buffers."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import torch

from exportdoctor.core.records.outcome import Agreement
from exportdoctor.report.wording import export as wording
from exportdoctor.report.wording.export import MASKED_OUTPUTS, NAN_OUTPUTS, NO_OUTPUTS, some_nan_outputs
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import CallResult, same_values
from exportdoctor.targets.plain_state import without_writes
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.prove.compare_outputs import alike, are_nan, compare_outputs, largest_difference
from exportdoctor.worker.prove.input_set import InputSet, named_path
from exportdoctor.worker.prove.masked_positions import last_positions, mask_of, show_unmasked
from exportdoctor.worker.prove.object_walk import FoundValue, values_in

_MOST_NAMES = 3
KEEPS_STATE = ": eager keeps state"
REPEATS_ITSELF = ": eager gives the same for equal calls, and the program does not"
"""Each ends what is said of a call that differs, and whose inputs came earlier, too."""
OTHERWISE_WITHOUT_GRADIENTS = (
    "the program gives what eager gives where gradients are recorded, as they are while torch.export traces; "
    "without gradients eager gives other numbers"
)


def compare_calls(one: InputSet, answers: Sequence[CallResult], *, tensors: bool = False) -> Agreement:
    """How the program's calls agree with eager's: of the first that does not, or of the one that differs most. One that
    leaves a buffer otherwise has the numbers of the latter.

    `tensors`: the program may be a file, which gives a flat list of tensors. Call it while the shims are active.
    """
    rows = [_compare_call(one, place, answer, tensors=tensors) for place, answer in enumerate(answers)]
    place = next((place for place, row in enumerate(rows) if not row.holds and not row.says_nothing), None)
    told = [row for row in rows if not row.says_nothing] or rows
    row = max(told, key=lambda row: row.max_abs / (row.tolerance or 1)) if place is None else rows[place]
    if row.buffers:  # what it leaves otherwise shows in the outputs of a later call
        most = max((one for one in told if one.buffers or not one.trouble), key=lambda one: one.max_abs)
        row = msgspec.structs.replace(row, max_abs=most.max_abs, max_rel=most.max_rel, tolerance=most.tolerance)
    if place:
        row = msgspec.structs.replace(row, call=0 if row.trouble else place)
        what = row.trouble or f"differs by {row.max_abs:.1e}"
        why = _why_repeated_differs(one, place)
        row = msgspec.structs.replace(row, trouble=f"call {place + 1} of {len(rows)} {what}{why}")
    kept = _state_note(one) if one.kind == "called_again" and row.holds else ""
    other = OTHERWISE_WITHOUT_GRADIENTS if one.with_gradients and row.holds else ""
    notes = "; ".join(dict.fromkeys(filter(None, (*(row.note for row in rows), kept, other))))
    return msgspec.structs.replace(row, kind=one.kind, made_up=one.made_up, note=notes)


def _why_repeated_differs(one: InputSet, place: int) -> str:
    """Why a call differs that agreed when it came first; empty for one that did not come before."""
    before = [result for call, result in zip(one.calls[:place], one.results) if call is one.calls[place]]
    if not before:
        return ""
    leaves = (tree_leaves((result.output, result.after, result.buffers)) for result in (one.results[place], before[0]))
    alike = compare_outputs("", *leaves).holds
    return REPEATS_ITSELF if alike else KEEPS_STATE


def _state_note(one: InputSet) -> str:
    """What eager changes from one of its equal calls to the next, though they answer alike: a later one may not."""
    *_, before, last = [{}, *(result.numbers for result in one.results)]
    changed = {name: value for name, value in last.items() if before.get(name, value) != value}
    if not changed:
        return ""
    seen = any(without_writes(before.get(name)) == without_writes(value) for name, value in changed.items())
    program = "" if seen else ", and the program does not"  # it may write into a tensor as eager does
    more = f" and {len(changed) - _MOST_NAMES} more" if len(changed) > _MOST_NAMES else ""
    return (
        f"eager changes {', '.join([*changed][:_MOST_NAMES])}{more} with each call{program}: "
        f"{len(one.results)} calls in a row agree, later ones were not compared"
    )


def _compare_call(one: InputSet, place: int, answer: CallResult, *, tensors: bool) -> Agreement:
    wanted, before = one.results[place], one.calls[place]
    row = _compare_answers(one, answer, wanted, tensors=tensors)
    if not row.holds:
        return row
    lost, returned = (
        list(dict.fromkeys(named_path(path, one.names) for path in paths))
        for paths in _find_lost(before, answer, wanted)
    )
    buffers, unchanged = _lost_buffers(answer, wanted)
    if lost or buffers:
        what = [f"does not change {', '.join(lost[:_MOST_NAMES])} as eager does"] if lost else []
        what += [f"leaves the {wording.named_buffers(buffers)} otherwise than eager"] if buffers else []
        return msgspec.structs.replace(row, trouble=f"the program {' and '.join(what)}", buffers=unchanged)
    if returned:
        note = f"the program returns what eager changes in its input {', '.join(returned[:_MOST_NAMES])}"
        return msgspec.structs.replace(row, note="; ".join(filter(None, (row.note, note))))
    return msgspec.structs.replace(row, says_nothing=True, trouble=NO_OUTPUTS) if does_nothing(before, wanted) else row


def does_nothing(call: Inputs, result: CallResult) -> bool:
    """Whether eager gives no output for the call, and changes neither inputs nor buffers."""
    if result.buffers or any(leaf is not None for leaf in tree_leaves(result.output)):
        return False
    before, after = _by_path(call), _by_path(result.after)
    return before.keys() == after.keys() and all(_same(before[path], after[path]) for path in before)


def _compare_answers(one: InputSet, answer: CallResult, wanted: CallResult, *, tensors: bool) -> Agreement:
    """The outputs alone, without those that only eager gives and the caller can derive."""
    found, everything = tree_leaves(answer.output), tree_leaves(wanted.output)
    known = [leaf for place, leaf in enumerate(everything) if place not in one.derived]
    expected, kept, notes = everything, known, []
    if tensors and all(isinstance(leaf, torch.Tensor) for leaf in found):
        expected, kept = (leaves_in_file(leaves, len(found)) for leaves in (everything, known))
        paired = [_as_complex(leaf, other) for leaf, other in zip(found, expected, strict=False)]
        if len(found) == len(expected) and any(new is not old for new, old in zip(paired, found, strict=True)):
            found, notes = paired, ["the file gives complex numbers as pairs of real ones"]
    if len(found) != len(expected) and len(found) == len(kept):
        names = {id(value.value): value.name for value in values_in(wanted.output)}
        missing = (
            names.get(id(everything[place]), f"output {place}").removeprefix(".") for place in sorted(one.derived)
        )
        notes = [f"the program leaves out {', '.join(missing)}, which follows from the whole-number inputs alone"]
        expected = kept
    row = compare_outputs(one.title, found, expected)
    if not row.holds and not row.refused and (seen := _compare_unmasked(one, found, expected)) is not None:
        row = seen
        notes.append(seen.note)
    if row.holds and (blank := are_nan(expected)) and any(blank):
        if all(blank):
            return msgspec.structs.replace(row, says_nothing=True, trouble=NAN_OUTPUTS)
        notes.append(some_nan_outputs(sum(blank)))
    return msgspec.structs.replace(row, note="; ".join(filter(None, notes)))


def leaves_in_file(leaves: Sequence[Any], count: int) -> list[torch.Tensor]:
    """The tensors among the leaves, and the numbers as tensors, too, where a file that has no others gives so many."""
    found = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    numbers = [torch.as_tensor(leaf).detach() for leaf in leaves if isinstance(leaf, torch.Tensor | int | float)]
    return numbers if len(found) != count == len(numbers) else found


def _as_complex(leaf: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Pairs of real numbers as complex ones, where such are wanted: ONNX Runtime has none."""
    pairs = wanted.is_complex() and leaf.dtype == wanted.dtype.to_real() and leaf.shape == (*wanted.shape, 2)
    return torch.view_as_complex(leaf.contiguous()) if pairs else leaf


def _compare_unmasked(one: InputSet, found: Sequence[Any], expected: Sequence[Any]) -> Agreement | None:
    """How outputs that differ agree at the positions that are not masked; None where they differ there, too, or in
    more than numbers."""
    mask = mask_of(one)
    if mask is None or bool((mask != 0).all()) or not all(map(alike, found, expected)):
        return None
    last = last_positions(one.inputs, one.mask_path or "")
    shown = [[show_unmasked(leaf, mask, last) for leaf in leaves] for leaves in (found, expected)]
    seen = compare_outputs(one.title, *shown)
    if not seen.holds:
        return None
    if not any(leaf.numel() for leaf in shown[1] if isinstance(leaf, torch.Tensor)):
        return msgspec.structs.replace(seen, says_nothing=True, trouble=MASKED_OUTPUTS)
    return msgspec.structs.replace(seen, note=wording.masked_positions(int((mask == 0).sum())))


def _find_lost(before: Inputs, answer: CallResult, wanted: CallResult) -> tuple[list[str], list[str]]:
    """The inputs that the program leaves otherwise than eager does, and those of them that eager also returns."""
    first, eager, found = (_by_path(inputs) for inputs in (before, wanted.after, answer.after))
    held = {id(thing) for value in values_in(wanted.output) for thing in value.within}
    lost: dict[str, None] = {}
    returned: dict[str, None] = {}
    for path in dict.fromkeys((*eager, *found, *first)):
        left, right, was = (values.get(path) for values in (found, eager, first))
        if _same(left, right) or (not _same(right, was) and _agrees(left, right)):
            continue
        within = right.within[2:] if right is not None else _holders(eager, path[:2])
        if any(id(thing) in held for thing in within) and _same(left, was):
            returned["".join(path[:2])] = None
        else:
            lost["".join(path)] = None
    return list(lost), list(returned)


def _by_path(inputs: Inputs) -> dict[tuple[str, ...], FoundValue]:
    return {value.path: value for value in values_in(inputs)}


def _holders(values: dict[tuple[str, ...], FoundValue], argument: tuple[str, ...]) -> tuple[Any, ...]:
    """What holds the values of this argument, outermost alone."""
    return tuple(value.within[2] for value in values.values() if value.path[:2] == argument and len(value.within) > 2)


def _same(one: FoundValue | None, other: FoundValue | None) -> bool:
    """Whether nothing changed from one to the other."""
    if one is None or other is None:
        return one is other
    if isinstance(one.value, torch.Tensor) and isinstance(other.value, torch.Tensor):
        return same_values(one.value, other.value)
    return type(one.value) is type(other.value) and bool(one.value == other.value or one.value != one.value)


def _agrees(one: FoundValue | None, other: FoundValue | None) -> bool:
    """Whether a changed value is eager's, but for rounding."""
    return one is not None and other is not None and compare_outputs("", [one.value], [other.value]).holds


def _lost_buffers(answer: CallResult, wanted: CallResult) -> tuple[list[str], tuple[str, ...]]:
    """The buffers that the program leaves otherwise than eager does, and those of them that it does not change.

    One tensor may have several names, of which a program keeps one at least; a wrapper of the module may have longer
    ones.
    """
    tied: dict[int, list[str]] = {}
    for name, value in wanted.buffers.items():
        tied.setdefault(id(value), []).append(name)
    lost, unchanged, rest = [], [], dict(answer.buffers)
    for names in tied.values():
        value = wanted.buffers[names[0]]
        keys = [name for name in names if name in rest]
        found = [rest.pop(key) for key in keys or _longer_names(names, rest, wanted.buffers)]
        if not found or not all(map(partial(_is_alike, value), found)):
            lost.append(names[0])
            unchanged += [] if found else [names[0]]
    return lost + list(rest), tuple(unchanged)


def _longer_names(names: Sequence[str], found: Iterable[str], others: Container[str]) -> list[str]:
    """What is found of these names in a wrapper of the module: the shortest that ends in each."""
    rest = sorted((key for key in found if key not in others), key=len)
    longer = (next((key for key in rest if key.endswith(f".{name}")), "") for name in names)
    return list(dict.fromkeys(filter(None, longer)))


def _is_alike(value: torch.Tensor, found: torch.Tensor) -> bool:
    return found.shape == value.shape and found.dtype == value.dtype and _close(found, value)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    absolute, _, allowed = largest_difference(one, other)
    return absolute <= allowed

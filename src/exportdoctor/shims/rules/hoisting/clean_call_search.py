"""Which calls are hoisted: the outermost ones around the code that reads values whose results are clean."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.export_call import ExportCall, Inputs, named_inputs
from exportdoctor.shims.record import NotApplicable
from exportdoctor.shims.rules.code.call_sites import names_read, names_set
from exportdoctor.shims.rules.code.code_swap import function_of
from exportdoctor.shims.rules.hoisting.clean_calls import CallRecord, has_fake_weights, record_calls
from exportdoctor.shims.rules.hoisting.hoisted_results import (
    HoistedCall,
    Outline,
    describe_results,
    flatten,
    global_names,
    input_stem,
    is_number_list,
)  # fmt: skip
from exportdoctor.shims.rules.hoisting.hoisted_state import ARGUMENTS
from exportdoctor.shims.rules.hoisting.local_kinds import LineKinds
from exportdoctor.shims.rules.hoisting.outlined_blocks import call_blocks, outline_blocks

_PLAIN = int | float | bool | str | None
_NUMBERS_OR_NONE = (int, float, bool, type(None))


def find_hoisted_calls(call: ExportCall, name: str) -> tuple[HoistedCall, ...]:
    """The clean calls around the calls of the function of that qualified name.

    Without a name: around all code that reads values, those whose arguments are known, if there are such. Where
    nothing follows from whole numbers alone, what follows from them and from weights. Where the inputs are converted
    for a program, no call counts that makes none of its inputs. Raises NotApplicable where there is none.
    """
    try:
        return _find(call, name, weights=False)
    except NotApplicable as reason:
        try:
            return _find(call, name, weights=True)
        except NotApplicable:
            raise reason from None


def _find(call: ExportCall, name: str, *, weights: bool) -> tuple[HoistedCall, ...]:
    inputs = [(call.args, call.kwargs), *call.more_inputs]
    seen: LineKinds | None = None if weights else {}
    runs = [record_calls(call.module, inputs[0], weights=weights, lines=seen)]
    runs += [record_calls(call.module, one, weights=weights) for one in inputs[1:]]
    outlines = _outline(runs[0][0], seen, name, call) if seen is not None else ()
    with call_blocks(outlines):
        if outlines:
            runs = [record_calls(call.module, one) for one in inputs]
        blocks = {block: one for one in outlines for block in one.blocks}
        chosen = [_choose(records, given, name, call, blocks) for records, given in runs]
    if not chosen[0]:
        what = f"no call around {name}" if name else "no call that reads values"
        raise NotApplicable(f"{what} computes only from whole numbers and the configuration")
    keys = [[(function, number) for function, number, _ in one] for one in chosen]
    if any(other != keys[0] for other in keys):
        raise NotApplicable("the calls come in another order for other inputs")
    found = []
    for place, (function, number, _) in enumerate(chosen[0]):
        several = [one[place][2] for one in chosen]
        alone = all(_is_apart(records, one) for (records, _), one in zip(runs, several, strict=True))
        made = _describe(function, number, several, [given for _, given in runs], call)
        made = replace(made, outline=blocks.get(function), unseen=_names_read_around(runs[0][0], several[0]))
        found.append(made if alone else replace(made, arguments=None))
    unknown = weights and has_fake_weights(call.module)
    return tuple(replace(one, recorded=()) if unknown else one for one in _named_apart(found, call.made))


def _named_apart(found: Sequence[HoistedCall], made: Collection[str]) -> list[HoistedCall]:
    """The calls, those of functions of one last name with inputs of different names, and of others than `made`."""
    stems: dict[FunctionType, str] = {}
    for one in found:
        if one.function not in stems:
            whole = input_stem(one.title, whole=True)
            several = (f"{whole.removesuffix('__')}_{number}__" for number in itertools.count(2))
            stems[one.function] = next(
                stem
                for stem in itertools.chain((input_stem(one.title), whole), several)
                if stem not in stems.values() and not any(name.startswith(stem) for name in made)
            )
    return [replace(one, stem=stems[one.function]) for one in found]


def _names_read_around(records: Sequence[CallRecord], record: CallRecord) -> frozenset[str]:
    """The attributes and globals that the code around the call reads, and its arguments. Which of them it sets, other
    inputs may show."""
    around = (one.code for one in records if not _is_inside(records, one, {record.place}))
    return names_read(around) | {ARGUMENTS}


def _outline(records: Sequence[CallRecord], seen: LineKinds, name: str, call: ExportCall) -> tuple[Outline, ...]:
    """The statements that read values, of the functions in which no call around them is clean. `seen`: what names held
    at the lines of these functions."""
    classes = _classes(call)
    owners: dict[CodeType, tuple[CallRecord, set[int]]] = {}
    for record in records:
        if record.lines and not _hoistable_around(records, record, classes):
            owner = record
            while owner.code.co_name.startswith("<") and owner.parent != -1:  # a comprehension, say
                owner = records[owner.parent]
            if not name or owner.code.co_qualname == name:
                owners.setdefault(owner.code, (owner, set()))[1].update(record.lines)
    found: list[Outline] = []
    for owner, lines in owners.values():
        function = function_of(owner.code, owner.names, owner.arguments, classes)
        made = outline_blocks(function, lines, seen.get(id(owner.code), {})) if function is not None else None
        if made is not None and global_names([made]).keys().isdisjoint(global_names(found)):
            found.append(made)
    return tuple(found)


def _choose(
    records: Sequence[CallRecord], given: Inputs, name: str, call: ExportCall, blocks: Collection[FunctionType]
) -> list[tuple[FunctionType, int, CallRecord]]:
    """For each call that is looked for, the outermost one around it that can be hoisted; known arguments come first.
    Of `blocks`, which stand in a function for its statements, none is left out."""
    classes = _classes(call)
    known: dict[int, tuple[FunctionType, CallRecord]] = {}
    found: dict[int, tuple[FunctionType, CallRecord]] = {}
    for record in records:
        wanted = record.code.co_qualname == name or any(one.__code__ is record.code for one in blocks)
        if not (wanted if name else record.asks):
            continue
        functions = [pair for pair in _hoistable_around(records, record, classes) if _is_wanted(pair[0], call)]
        direct = [pair for pair in functions if _sources(pair[1], given, call) is not None]
        known.update({pair[1].place: pair for pair in direct[-1:]})
        found.update({pair[1].place: pair for pair in (direct or functions)[-1:]})
    if known and not name:
        found = known | {place: pair for place, pair in found.items() if pair[0] in blocks}
    return _number_calls(records, found)


def _is_wanted(function: FunctionType, call: ExportCall) -> bool:
    """Whether its result may be an input of the program for which inputs are converted."""
    wanted, name = call.wanted_inputs, function.__qualname__
    stems = input_stem(name), input_stem(name, whole=True).removesuffix("__")
    return wanted is None or any(one.startswith(stems) for one in wanted)


def _hoistable_around(
    records: Sequence[CallRecord], record: CallRecord, classes: Sequence[type[Any]]
) -> list[tuple[FunctionType, CallRecord]]:
    """The call and those around it that give clean values and whose functions are known, outwards."""
    around = [one for one in _calls_around(records, record) if one.parent != -1 and one.clean and _has_value(one)]
    named = [(function_of(one.code, one.names, one.arguments, classes), one) for one in around]
    return [(function, one) for function, one in named if function is not None]


def _number_calls(
    records: Sequence[CallRecord], found: Mapping[int, tuple[FunctionType, CallRecord]]
) -> list[tuple[FunctionType, int, CallRecord]]:
    """Those that are in no other, in order, each with its number among the calls of its function outside of others."""
    outer = {place for place, (_, one) in found.items() if not _is_inside(records, one, found.keys() - {place})}
    functions = {found[place][1].code: found[place][0] for place in outer}
    numbers: dict[FunctionType, Iterator[int]] = {}
    result = []
    for record in records:
        function = functions.get(record.code)
        if function is not None and not _is_inside(records, record, outer - {record.place}):
            number = next(numbers.setdefault(function, itertools.count()))
            if record.place in outer:
                result.append((function, number, record))
    return result


def _classes(call: ExportCall) -> list[type[Any]]:
    return list(dict.fromkeys(kind for module in call.module.modules() for kind in type(module).__mro__))


def _calls_around(records: Sequence[CallRecord], record: CallRecord) -> Iterator[CallRecord]:
    """The call and those around it, outwards."""
    while True:
        yield record
        if record.parent == -1:
            return
        record = records[record.parent]


def _is_inside(records: Sequence[CallRecord], record: CallRecord, places: Any) -> bool:
    return any(one.place in places for one in _calls_around(records, record))


def _has_value(record: CallRecord) -> bool:
    """Whether its result has tensors or numbers, and nothing but them and plain values."""
    import torch

    leaves, _ = flatten(record.result)
    known = all(
        isinstance(leaf, torch.Tensor) or type(leaf) in _NUMBERS_OR_NONE or is_number_list(leaf) for leaf in leaves
    )
    return known and any(isinstance(leaf, torch.Tensor) or is_number_list(leaf) or type(leaf) is int for leaf in leaves)


def _describe(
    function: FunctionType, number: int, records: Sequence[CallRecord], given: Sequence[Inputs], call: ExportCall
) -> HoistedCall:
    common = describe_results(function.__qualname__, number, [record.result for record in records])
    sources = [_sources(record, one, call) for record, one in zip(records, given, strict=True)]
    same = all(source is not None and _alike(source, sources[0]) for source in sources)
    return HoistedCall(
        **vars(common),
        function=function,
        arguments=sources[0] if same else None,
        recorded=tuple(one.result for one in records),
    )


def _is_apart(records: Sequence[CallRecord], record: CallRecord) -> bool:
    """Whether the call gives the same without the forward before it: its plain arguments are no sizes and no values
    of tensors, and it reads no attribute and no global that anything in the forward sets."""
    plain = {name for name, value in record.arguments.items() if isinstance(value, _PLAIN)}
    written = names_set(one.code for one in records)
    if written is None or not plain <= record.fixed.keys():
        return False
    codes = [one.code for one in records if _is_inside(records, one, {record.place})]
    return written.isdisjoint(names_read(codes).union(*record.fixed.values()))


def _sources(record: CallRecord, given: Inputs, call: ExportCall) -> dict[str, Any] | None:
    """Where each argument comes from; `None` where one is neither an input, nor a module, nor a plain value."""
    import torch

    named = named_inputs(inspect.signature(call.module.forward), given)
    found: dict[str, Any] = {}
    for name, value in record.arguments.items():
        source = next((key for key, one in named.items() if one is value and isinstance(one, torch.Tensor)), None)
        if source is not None:
            found[name] = source
        elif isinstance(value, torch.nn.Module | _PLAIN) or _is_setting(value):
            found[name] = (value,)
        else:
            return None
    return found


def _is_setting(value: Any) -> bool:
    """A value that says how to compute, and holds no tensor."""
    import torch

    return (
        isinstance(value, torch.dtype | torch.device | type)
        or (isinstance(value, tuple | dict) and not value)
        or type(value).__name__.endswith("Config")
    )


def _alike(one: Mapping[str, Any], other: Any) -> bool:
    return other is not None and one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        left, right = one[0], other[0]
        return left is right or (type(left) is type(right) and _is_comparable(left) and bool(left == right))
    return isinstance(one, str) and isinstance(other, str) and one == other


def _is_comparable(value: Any) -> bool:
    return isinstance(value, _PLAIN) or _is_setting(value)

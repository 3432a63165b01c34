"""Which calls in a forward compute something from whole numbers, buffers and the configuration alone.

With `weights`, also from parameters. Then memory that is allocated without values (`torch.empty`) counts as well, where
a call gives the same whatever that memory is filled with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.shims.export_call import Inputs
from exportdoctor.shims.rules.code.call_sites import fixed_arguments
from exportdoctor.shims.rules.hoisting.clean_values import CleanValues, follow_values
from exportdoctor.shims.rules.hoisting.local_kinds import LineKinds, has_loop, note_locals
from exportdoctor.shims.rules.hoisting.unfilled_memory import FILLS, is_same_result
from exportdoctor.targets.eager import copy_inputs, same_values, storage_id
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracing_modes import outside_all_modes
from exportdoctor.torch_internals.trees import tree_leaves, tree_map_only

NOT_ONE_CALL = 0x20 | 0x80 | 0x200
"""Flags of code that does not run as one call."""


@dataclass(kw_only=True)
class CallRecord:
    """One call of a function of the user's, at `place` in the list; `parent` is the place of the call around it or -1.

    `clean`: its result follows from whole numbers, buffers and constants, and it wrote into nothing older than itself
    and gave nothing older but a part of a buffer. The result is a copy, since what follows may write into it.
    Others keep neither their result nor their arguments, which may be all that the model computes. `asks`: its own
    code, not that of calls in it, does what depends on values; `lines` are those of the clean ones. `names` are its
    globals, `fixed` its `fixed_arguments`.
    """

    code: CodeType
    names: dict[str, Any]
    arguments: dict[str, Any]
    parent: int
    place: int
    start: tuple[int, int]
    result: Any = None
    clean: bool = False
    asks: bool = False
    lines: set[int] = field(default_factory=set)
    fixed: dict[str, frozenset[str]] = field(default_factory=dict)

    def forget(self) -> None:
        """It is not clean."""
        self.clean, self.result = False, None
        self.arguments.clear()


def record_calls(
    module: Any,
    inputs: Inputs,
    *,
    weights: bool = False,
    lines: LineKinds | None = None,
) -> tuple[list[CallRecord], Inputs]:
    """The calls of the user's functions in one forward, in order, and the copy of the inputs that it was given.

    What names hold at the lines of functions with a loop is added to `lines`. Raises what the module raises.
    """
    values = CleanValues(weights=weights)
    calls, given, changing = _record(module, inputs, values, lines)
    if changing:
        calls, given, _ = _record(module, inputs, values := CleanValues(weights=weights, changing=changing), lines)
    if weights and values.unfilled:
        # what weights without values are written into has none either: only the small model's show what is the same
        fills = FILLS[:1] if has_fake_weights(module) else FILLS
        filled = [CleanValues(weights=weights, changing=changing, fill=fill) for fill in fills]
        (calls, given, _), *others = [_record(module, inputs, one) for one in filled]
        for other, _, _ in others:
            _keep_same(calls, other)
    return calls, given


def has_fake_weights(module: Any) -> bool:
    """Whether some of the module's parameters have no values."""
    return any(map(is_fake, module.parameters()))


def _keep_same(calls: list[CallRecord], others: list[CallRecord]) -> None:
    """Forget the calls that give something else in the other run, and those of functions that are not as often called
    there."""
    found = _by_function(others)
    for code, several in _by_function(calls).items():
        again = found.get(code, [])
        for place, one in enumerate(several):
            alike = len(again) == len(several) and again[place].clean
            if one.clean and not (alike and is_same_result(one.result, again[place].result)):
                one.forget()


def _by_function(calls: list[CallRecord]) -> dict[CodeType, list[CallRecord]]:
    found: dict[CodeType, list[CallRecord]] = {}
    for one in calls:
        found.setdefault(one.code, []).append(one)
    return found


def _record(
    module: Any, inputs: Inputs, known: CleanValues, lines: LineKinds | None = None
) -> tuple[list[CallRecord], Inputs, frozenset[int]]:
    """As `record_calls`, with the storages of the module that the forward has changed."""
    calls: list[CallRecord] = []
    running: list[tuple[CallRecord, Any]] = []
    args, kwargs = copy_inputs(inputs)

    def note_value() -> None:
        if running:
            record, frame = running[-1]
            record.asks = True
            if not values.reads:
                record.lines.add(frame.f_lineno)

    def note_call(frame: Any, event: str, value: Any) -> Callable[..., Any] | None:
        if not is_user_file(frame.f_code.co_filename):
            return None
        frame.f_trace_lines = lines is not None and has_loop(frame.f_code)
        parent = running[-1][0].place if running else -1
        given, start = dict(frame.f_locals), (len(values.written), values.clock)
        for one in given.values():
            values.mark_state(one)
        record = CallRecord(
            code=frame.f_code, names=frame.f_globals, arguments=given, parent=parent, place=len(calls), start=start,
            fixed=fixed_arguments(frame, given),
        )  # fmt: skip
        calls.append(record)
        running.append((record, frame))
        return note_end

    def note_end(frame: Any, event: str, value: Any) -> Callable[..., Any]:
        if event == "line" and lines is not None:
            note_locals(lines.setdefault(id(frame.f_code), {}), frame, values)
        elif event == "return" and running and running[-1][1] is frame:
            _end(running.pop()[0], value, values)
        return note_end

    before = _copy_state(module)
    with follow_values(module, note_value, known) as values:
        values.mark_inputs((args, kwargs))
        with trace_calls(note_call):
            module(*args, **kwargs)
        changed = _changed_state(module, before)
    return calls, (args, kwargs), changed


def _state_of(module: Any) -> dict[tuple[int, str], Any]:
    """The buffers and plain tensors of the modules."""
    import torch

    return {
        (id(part), name): value
        for part in module.modules()
        for name, value in (*part._buffers.items(), *vars(part).items())
        if isinstance(value, torch.Tensor) and not is_fake(value)
    }


def _copy_state(module: Any) -> dict[tuple[int, str], tuple[Any, Any]]:
    return {key: (value, value.detach().clone()) for key, value in _state_of(module).items()}


def _changed_state(module: Any, before: dict[tuple[int, str], tuple[Any, Any]]) -> frozenset[int]:
    """The storages whose values are others now, or in whose place others are."""
    with outside_all_modes():
        now = _state_of(module)
        return frozenset(
            storage_id(tensor)
            for key, (tensor, copy) in before.items()
            if not (same_values(tensor, copy) and (key not in now or same_values(now[key], copy)))
        )


def _end(record: CallRecord, value: Any, values: CleanValues) -> None:
    import torch

    written, clock = record.start
    writes = any(born <= clock for born in values.written[written:])
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    plain = not record.code.co_flags & NOT_ONE_CALL
    clean = all(values.is_clean(one) and values.is_new(one, clock) for one in tensors)
    record.clean = plain and not values.reads and not writes and clean
    if record.clean:
        with outside_all_modes():
            record.result = tree_map_only(torch.Tensor, torch.clone, value)
    else:
        record.arguments.clear()


@contextmanager
def trace_calls(note: Any) -> Iterator[None]:
    """`note` hears of each call of a Python function. A profile function would also hear of each call of one in C."""
    before = sys.getprofile(), sys.gettrace()
    sys.setprofile(None)
    sys.settrace(note)
    try:
        yield
    finally:
        sys.settrace(before[1])
        sys.setprofile(before[0])

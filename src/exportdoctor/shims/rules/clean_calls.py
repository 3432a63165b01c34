"""Which calls in a forward compute something from whole numbers, buffers and the configuration alone.

The forward runs in eager under a mode that follows values: a tensor is *clean* if all tensors that it was computed
from are. Whole-number inputs and buffers are clean; floating inputs and parameters are not. What no function of torch
made, such as `torch.Tensor(array)`, is clean if no operator made it of what is not. A read of an unclean value by
Python makes all that follows unclean.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.shims.export_call import Inputs
from exportdoctor.shims.rules.call_sites import fixed_arguments
from exportdoctor.targets.eager import copy_inputs, hold_storage_id, restore_afterwards, same_values, storage_id
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracing_modes import dispatch_mode_class, outside_all_modes
from exportdoctor.torch_internals.trees import tree_leaves, tree_map_only

_READS = frozenset({"__bool__", "item", "__int__", "__float__", "__index__", "equal", "allclose", "tolist", "numpy"})
_SIZES = frozenset(
    {"nonzero", "unique", "unique_consecutive", "masked_select", "repeat_interleave", "bincount", "argwhere"}
)
"""The size of what these give depends on values."""

_VALUE_FREE = frozenset({
    "ones_like", "zeros_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full",
    "new_tensor",
})  # fmt: skip
_RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal", "poisson", "exponential", "empty")
_GENERATOR = 0x20 | 0x80 | 0x200
"""Flags of code that does not run as one call."""


@dataclass(kw_only=True)
class CallRecord:
    """One call of a function of the user's, at `place` in the list; `parent` is the place of the call around it or -1.

    `clean`: its result follows from whole numbers, buffers and constants, and it wrote into nothing older than itself
    and gave nothing older but a part of a buffer. The result is a copy, since what follows may write into it.
    Others keep neither their result nor their arguments, which may be all that the model computes. `asks`: its own
    code, not that of calls in it, does what depends on values. `names` are its globals, `fixed` its `fixed_arguments`.
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
    fixed: dict[str, frozenset[str]] = field(default_factory=dict)


@dataclass(kw_only=True)
class CleanValues:
    """The storages of clean tensors with the time they were first seen, and those of what operators made of others.

    Their identities are held, so that none is given away again; their memory is not. `state` are those of modules.
    Those that a forward leaves `changing` are not clean: what follows from them differs from call to call.
    """

    seen: dict[int, tuple[Any, int]] = field(default_factory=dict)
    unclean: dict[int, Any] = field(default_factory=dict)
    reads: int = 0
    clock: int = 0
    written: list[int] = field(default_factory=list)
    modules: dict[int, Any] = field(default_factory=dict)
    state: set[int] = field(default_factory=set)
    changing: frozenset[int] = frozenset()

    def mark(self, tensor: Any) -> None:
        """From here on it is clean."""
        self.clock += 1
        self.seen.setdefault(storage_id(tensor), (hold_storage_id(tensor), self.clock))

    def mark_inputs(self, inputs: Any) -> None:
        """Those of whole numbers are clean, others are not."""
        import torch

        for leaf in tree_leaves(inputs):
            if isinstance(leaf, torch.Tensor):
                if _is_whole(leaf):
                    self.mark(leaf)
                else:
                    self.unclean[storage_id(leaf)] = hold_storage_id(leaf)

    def mark_state(self, part: Any) -> None:
        """A module's buffers and tensors are clean, also those of one that no other module lists."""
        import torch

        if isinstance(part, torch.nn.Module) and id(part) not in self.modules:
            self.modules[id(part)] = part
            for leaf in (*part._buffers.values(), *vars(part).values()):
                if isinstance(leaf, torch.Tensor):
                    key = storage_id(leaf)
                    if key in self.changing:
                        self.unclean[key] = hold_storage_id(leaf)
                        continue
                    if key not in self.seen:
                        self.state.add(key)
                    self.mark(leaf)

    def is_new(self, tensor: Any, clock: int) -> bool:
        """Whether its memory was not seen before that time, or is a module's."""
        key = storage_id(tensor)
        return key in self.state or key not in self.seen or self.seen[key][1] > clock

    def is_clean(self, tensor: Any) -> bool:
        """Whether its values follow from whole numbers, buffers and constants."""
        import torch

        key = storage_id(tensor)
        return key in self.seen or not (key in self.unclean or isinstance(tensor, torch.nn.Parameter))

    def note(self, func: Any, args: Any, kwargs: Any, made: Any) -> bool:
        """What an operator did: its result is clean if its tensors are; a write makes its target as unclean as they.

        True where values decide on it that only a run knows: Python reads them, or a size depends on them.
        """
        import torch

        name = getattr(func, "__name__", "")
        tensors = _tensors((args, kwargs))
        clean = all(map(self.is_clean, tensors))
        if name in _READS:
            self.reads += not clean
            return True
        if _writes(name) and tensors:
            key = storage_id(tensors[0])
            self.written.append(self.seen[key][1] if key in self.seen else 0)
            if not clean:
                self.seen.pop(key, None)
                self.unclean[key] = hold_storage_id(tensors[0])
        if (clean or name in _VALUE_FREE) and not self.reads and not any(word in name for word in _RANDOM):
            for leaf in _tensors(made):
                self.mark(leaf)
        return name in _SIZES or (name == "__getitem__" and any(one.dtype == torch.bool for one in tensors[1:]))

    def note_operator(self, name: str, given: Any, made: Any) -> None:
        """What an operator makes of an unclean tensor or by chance, and what it then writes into, is unclean."""
        tensors = _tensors(given)
        if any(word in name for word in _RANDOM) or not all(map(self.is_clean, tensors)):
            written = tensors[:1] if _writes(name.partition(".")[0]) else []
            for leaf in (*_tensors(made), *written):
                self.unclean[storage_id(leaf)] = hold_storage_id(leaf)


def _tensors(tree: Any) -> list[Any]:
    """The tensors among the leaves, in order. Operators are given few containers but tuples, lists and dicts."""
    import torch

    if isinstance(tree, torch.Tensor):
        return [tree]
    if type(tree) in (tuple, list):
        return [tensor for one in tree for tensor in _tensors(one)]
    if type(tree) is dict:
        return [tensor for one in tree.values() for tensor in _tensors(one)]
    if tree is None or type(tree) in (int, float, bool, str):
        return []
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _writes(name: str) -> bool:
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")


@contextmanager
def follow_values(
    module: Any, seen: Callable[[], None] = lambda: None, changing: frozenset[int] = frozenset()
) -> Iterator[CleanValues]:
    """Within it values are followed through what the module computes, which is restored afterwards; `seen` is called
    for each operator whose result only a run knows. `changing` are the storages of the module that are not clean."""
    import torch
    from torch.overrides import TorchFunctionMode

    values = CleanValues(changing=changing)
    for part in module.modules():
        values.mark_state(part)

    class Following(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            with nullcontext() if any(map(callable, (*args, *kwargs.values()))) else _trace_paused():
                made = func(*args, **kwargs)
            if values.note(func, args, kwargs, made):
                seen()
            return made

    class Operators(dispatch_mode_class()):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            values.note_operator(func.__name__, (args, kwargs or {}), made)
            return made

    with torch.no_grad(), restore_afterwards(module), Operators(), Following():
        yield values


def record_calls(module: Any, inputs: Inputs) -> tuple[list[CallRecord], Inputs]:
    """The calls of the user's functions in one forward, in order, and the copy of the inputs that it was given.

    Raises what the module raises.
    """
    calls, given, changed = _record(module, inputs, frozenset())
    if changed:
        calls, given, _ = _record(module, inputs, changed)
    return calls, given


def _record(module: Any, inputs: Inputs, changing: frozenset[int]) -> tuple[list[CallRecord], Inputs, frozenset[int]]:
    """As `record_calls`, with the storages of the module that the forward has changed."""
    calls: list[CallRecord] = []
    running: list[tuple[CallRecord, Any]] = []
    args, kwargs = copy_inputs(inputs)

    def note_value() -> None:
        if running:
            running[-1][0].asks = True

    def note_call(frame: Any, event: str, value: Any) -> Callable[..., Any] | None:
        if not is_user_file(frame.f_code.co_filename):
            return None
        frame.f_trace_lines = False
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
        if event == "return" and running and running[-1][1] is frame:
            _end(running.pop()[0], value, values)
        return note_end

    before = _copy_state(module)
    with follow_values(module, note_value, changing) as values:
        values.mark_inputs((args, kwargs))
        with _trace(note_call):
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


def _is_whole(tensor: Any) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _end(record: CallRecord, value: Any, values: CleanValues) -> None:
    import torch

    written, clock = record.start
    writes = any(born <= clock for born in values.written[written:])
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    plain = not record.code.co_flags & _GENERATOR
    clean = all(values.is_clean(one) and values.is_new(one, clock) for one in tensors)
    record.clean = plain and not values.reads and not writes and clean
    if record.clean:
        with outside_all_modes():
            record.result = tree_map_only(torch.Tensor, torch.clone, value)
    else:
        record.arguments.clear()


@contextmanager
def _trace(note: Any) -> Iterator[None]:
    """`note` hears of each call of a Python function. A profile function would also hear of each call of one in C."""
    before = sys.getprofile(), sys.gettrace()
    sys.setprofile(None)
    sys.settrace(note)
    try:
        yield
    finally:
        sys.settrace(before[1])
        sys.setprofile(before[0])


@contextmanager
def _trace_paused() -> Iterator[None]:
    """Within it no call is noted: inside a function of torch runs torch's own code, which is most of all calls."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)

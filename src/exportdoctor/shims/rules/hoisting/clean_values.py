"""Which tensors in a forward are *clean*: computed from whole numbers, buffers and the configuration alone.

The forward runs in eager under modes that follow values: a tensor is clean if all tensors that it was computed from
are. Whole-number inputs and buffers are clean; floating inputs and parameters are not. What no function of torch made,
such as `torch.Tensor(array)`, is clean if no operator made it of what is not. A read by Python of an unclean value, or
of a size that follows from one, makes all that follows unclean. With `weights`, parameters are clean, too, but not what
an operator computes from them and from whole-number inputs: that is what the model is for, such as the embedding of
token ids.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.shims.random_functions import has_random_name
from exportdoctor.shims.rules.code.call_sites import statement_at
from exportdoctor.shims.rules.code.torch_functions import (
    FIXED_SIZE,
    MADE_OF_NUMBERS,
    SIZE_ARGUMENT,
    SIZED_AS_FIRST,
    SIZED_BY_VALUES,
    VALUE_FREE,
    VALUE_READS,
    gives_size,
    has_bounds,
    reads_number,
    sizing_tensors,
    tensors_of,
    writes_first,
)
from exportdoctor.shims.rules.hoisting.unfilled_memory import value_of
from exportdoctor.targets.eager import hold_storage_id, restore_afterwards, storage_id
from exportdoctor.torch_internals.tracing_modes import dispatch_mode_class
from exportdoctor.torch_internals.trees import tree_leaves

_TELLS = re.compile(
    r"print|(.+\.)?(logging|\w*log(ger)?|warnings)(\(.*\))?\.(critical|debug|error|exception|info|warn)\w*", re.I
)
"""Functions that print, warn or log."""


@dataclass(kw_only=True)
class CleanValues:
    """The storages of clean tensors with the time they were first seen, and those of what operators made of others.

    Their identities are held, so that none is given away again; their memory is not. `state` are those of modules.
    Those that a forward leaves `changing` are not clean: what follows from them differs from call to call.
    `fill`, of `unfilled_memory.FILLS`, is written into memory that is allocated without values, and it is clean then;
    `unfilled`: there was such. `sources`: whether a storage's values follow from those of inputs or of weights.
    `sizes`: the storages of tensors whose sizes follow from unclean values. `numbers`: how often an operator read
    one.
    """

    seen: dict[int, tuple[Any, int]] = field(default_factory=dict)
    unclean: dict[int, Any] = field(default_factory=dict)
    reads: int = 0
    clock: int = 0
    written: list[int] = field(default_factory=list)
    modules: dict[int, Any] = field(default_factory=dict)
    state: set[int] = field(default_factory=set)
    changing: frozenset[int] = frozenset()
    weights: bool = False
    fill: str = ""
    unfilled: bool = False
    sources: dict[int, tuple[Any, frozenset[str]]] = field(default_factory=dict)
    sizes: dict[int, Any] = field(default_factory=dict)
    numbers: int = 0

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
                    self._add_sources(leaf, frozenset({"inputs"}))
                else:
                    self.unclean[storage_id(leaf)] = hold_storage_id(leaf)

    def mark_state(self, part: Any) -> None:
        """A module's buffers and tensors are clean, also those of one that no other module lists; its parameters if
        weights are. Not what a module that forward makes holds of what forward computed."""
        import torch

        is_built = isinstance(part, torch.nn.Module) and "_buffers" in vars(part)
        if is_built and id(part) not in self.modules:
            self.modules[id(part)] = part
            weights = part._parameters.values() if self.weights else ()
            for leaf in (*part._buffers.values(), *vars(part).values(), *weights):
                if isinstance(leaf, torch.Tensor):
                    key = storage_id(leaf)
                    if isinstance(leaf, torch.nn.Parameter):
                        self._add_sources(leaf, frozenset({"weights"}))
                    if key in self.changing or key in self.unclean:
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

        if self._has_unclean_size(tensor):
            return False
        key = storage_id(tensor)
        return key in self.seen or not (key in self.unclean or isinstance(tensor, torch.nn.Parameter))

    def note(self, func: Any, args: Any, kwargs: Any, made: Any, *, read: bool, told: Callable[[], bool]) -> bool:
        """What an operator did: its result is clean if its tensors are; a write makes its target as unclean as they.

        `read`: it has read a number from an unclean tensor. `told`: whether what Python reads is only told to somebody.
        True where values decide on it that only a run knows: Python reads them, or a size depends on them.
        """
        import torch

        name = getattr(func, "__name__", "").partition(".")[0]  # without the overload of an operator
        tensors = tensors_of((args, kwargs))
        clean = all(map(self.is_clean, tensors)) and len(self._sources_of(tensors)) < 2
        if name in VALUE_READS or name == "is_same_size":
            self.reads += not clean and not told()
            return True
        for target in (*(tensors[:1] if writes_first(name) else ()), *tensors_of(kwargs.get("out"))):
            key = storage_id(target)
            self.written.append(self.seen[key][1] if key in self.seen else 0)
            if read or not clean:
                self.seen.pop(key, None)
                self.unclean[key] = hold_storage_id(target)
        if name == "tensor_split" and not all(map(self.is_clean, tensors[1:])):
            self._add_sizes(made)
        sized = any(map(self._has_unclean_size, tensors))
        self.reads += sized and gives_size(func, name, made) and not told()
        if any(map(self._has_unclean_size, tensors[:1] if writes_first(name) or name in SIZED_AS_FIRST else tensors)):
            self._add_sizes(made)
        read = read or (name in MADE_OF_NUMBERS and not clean)
        if read:
            self._note_number(name, args, made)
        free = name in VALUE_FREE and not sized and all(map(self.is_clean, tensors[1:]))
        if (clean or free) and not read and not self.reads and not self._is_by_chance(name):
            for leaf in tensors_of(made):
                self.mark(leaf)
        if name in ("__getitem__", "__setitem__") and has_bounds(args[1]):
            return True
        return name in SIZED_BY_VALUES or (
            name == "__getitem__" and any(one.dtype == torch.bool for one in tensors[1:])
        )

    def _note_number(self, name: str, args: Any, made: Any) -> None:
        """Of a function that read a number from an unclean tensor: what it gives follows from that, maybe in size, too.
        A view of clean memory cannot be told from others."""
        for leaf in tensors_of(made):
            key = storage_id(leaf)
            self.reads += key in self.seen
            self.unclean[key] = hold_storage_id(leaf)
        place = SIZE_ARGUMENT.get(name)
        if place is not None and all(map(self.is_clean, tensors_of(args[place : place + 1]))):
            return
        if name not in FIXED_SIZE and (name != "__getitem__" or has_bounds(args[1])):
            self._add_sizes(made)

    def note_operator(self, operator: Any, given: Any, made: Any) -> None:
        """What an operator makes of an unclean tensor, of inputs and weights, or by chance, and what it then writes to,
        is unclean. So is a size that follows from unclean values."""
        tensors, name = tensors_of(given), operator.__name__
        base = name.partition(".")[0]
        self.numbers += reads_number(operator) and not all(map(self.is_clean, tensors))
        sized = tensors[:1] if writes_first(base) or base in SIZED_AS_FIRST else tensors
        if any(map(self._has_unclean_size, sized)) or not all(map(self.is_clean, sizing_tensors(operator, given))):
            self._add_sizes(made)
        sources = self._sources_of(tensors)
        written = [*(tensors[:1] if writes_first(base) else ()), *tensors_of(given[1].get("out"))]
        changed = (*tensors_of(made), *written)
        if self.fill and "empty" in name:
            for leaf in tensors_of(made):
                leaf.fill_(value_of(self.fill, leaf.dtype))
        for leaf in changed if sources else ():
            self._add_sources(leaf, sources)
        if self._is_by_chance(name) or len(sources) > 1 or not all(map(self.is_clean, tensors)):
            for leaf in changed:
                self.unclean[storage_id(leaf)] = hold_storage_id(leaf)

    def _has_unclean_size(self, tensor: Any) -> bool:
        return bool(self.sizes) and tensor.dim() > 0 and storage_id(tensor) in self.sizes

    def _add_sizes(self, made: Any) -> None:
        for leaf in tensors_of(made):
            if leaf.dim() > 0:
                self.sizes[storage_id(leaf)] = hold_storage_id(leaf)

    def _sources_of(self, tensors: Sequence[Any]) -> frozenset[str]:
        held = (self.sources.get(storage_id(tensor)) for tensor in tensors)
        return frozenset().union(*(sources for one in held if one is not None for sources in one[1:]))

    def _add_sources(self, tensor: Any, sources: frozenset[str]) -> None:
        key = storage_id(tensor)
        _, before = self.sources.get(key, (None, frozenset()))
        self.sources[key] = (hold_storage_id(tensor), before | sources)

    def _is_by_chance(self, name: str) -> bool:
        """Whether an operator of that name gives values that follow from nothing that it is given."""
        self.unfilled |= "empty" in name
        return has_random_name(name) or ("empty" in name and not self.fill)


def _is_told(frame: FrameType | None) -> bool:
    """Whether the user's statement that runs there only prints, warns or logs, or raises."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    with trace_paused():  # Python cannot parse code while it parses other code, as a trace function may
        statement = statement_at(frame) if frame is not None else None
    match statement:
        case ast.Raise() | ast.Assert():
            return True
        case ast.Expr(value=ast.Call(func=function)):
            return _TELLS.fullmatch(ast.unparse(function)) is not None
    return False


@contextmanager
def follow_values(
    module: Any, seen: Callable[[], None] = lambda: None, known: CleanValues | None = None
) -> Iterator[CleanValues]:
    """Within it values are followed through what the module computes, which is restored afterwards; `seen` is called
    for each operator whose result only a run knows. `known` says what else is clean or is not."""
    import torch
    from torch.overrides import TorchFunctionMode

    values = known or CleanValues()
    for part in module.modules():
        values.mark_state(part)

    class Following(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs, frame, numbers = kwargs or {}, sys._getframe(1), values.numbers
            with nullcontext() if any(map(callable, (*args, *kwargs.values()))) else trace_paused():
                made = func(*args, **kwargs)
            read = values.numbers > numbers
            if values.note(func, args, kwargs, made, read=read, told=lambda: _is_told(frame)):
                seen()
            return made

    class Operators(dispatch_mode_class()):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            values.note_operator(func, (args, kwargs or {}), made)
            return made

    with torch.no_grad(), restore_afterwards(module), Operators(), Following():
        yield values


def _is_whole(tensor: Any) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


@contextmanager
def trace_paused() -> Iterator[None]:
    """Within it no call is noted: inside a function of torch runs torch's own code, which is most of all calls."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)

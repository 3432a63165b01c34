"""Records the inputs of every submodule in one forward pass, and restores the model, instance attributes included."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from exportdoctor.core.exception_text import text_of
from exportdoctor.targets.eager import restore_afterwards, run_forward
from exportdoctor.targets.iterator_places import PLAIN_KINDS
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.capture.behaviour import Behaviour, describe_value
from exportdoctor.worker.capture.call_shapes import CallShapes, OpenCall, close_call, open_call
from exportdoctor.worker.capture.dynamic_dims import (
    InputDim,
    differing_dims,
    each_dim,
    has_size_below_two,
    leaves_of,
    size_at,
)
from exportdoctor.worker.capture.snapshot import CopyBudget, snapshot

CALLS_KEPT = 32  # distinct calls of one module that are exported
_CALLS_SEEN = 256


@dataclass
class Call:
    """One call of a module, its inputs copied before it ran. `dims` are the dynamic dimensions by leaf index.

    `sizes` are the sizes of these in the two captures, `axes` their names. `inner` are the calls that it made of
    other modules, in order; `inner_there` the same in the second capture.
    `behaviour` is a digest of what it did. `reads_whole_state`: it used `__dict__` or `vars` of a module.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dims: dict[int, tuple[int, ...]] = field(default_factory=dict)
    times: int = 1
    sizes: dict[InputDim, tuple[int, int]] = field(default_factory=dict)
    axes: dict[InputDim, str] = field(default_factory=dict)
    inner: list[CallShapes] = field(default_factory=list)
    inner_there: list[CallShapes] | None = None
    behaviour: str = ""
    reads_whole_state: bool = False


@dataclass
class ModuleCalls:
    """The calls of one module: the first few that were kept, and how many there were.

    `returned` are the classes, as text, of what the root gives beside tensors and plain values; None where not known.
    """

    kept: list[Call] = field(default_factory=list)
    seen: int = 0
    returned: tuple[str, ...] | None = None


def record_calls(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    budget: CopyBudget,
    behaves: bool = True,
) -> dict[int, ModuleCalls]:
    """Run `module(*args, **kwargs)` once and return each called submodule's calls by `id(submodule)`.

    With `behaves` also what each did. Raises whatever the forward raises; hooks are gone and state is back in either
    case.
    """
    begun = budget.left, budget.faked

    def record(behaviour: Behaviour | None) -> dict[int, ModuleCalls]:
        budget.left, budget.faked = begun
        return _record(module, args, kwargs, budget=budget, behaviour=behaviour)

    if behaves:
        # the code of a target may refuse to be watched: only a failure that is there without it is the target's
        with suppress(Exception):
            return run_forward(module, lambda: record(Behaviour()))
    return run_forward(module, lambda: record(None))


@dataclass
class _UnderWay:
    """A module call that has begun: its shapes, where its behaviour begins, and the call if it is kept."""

    shapes: OpenCall
    begin: int
    reads: int
    call: Call | None = None


def _record(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    budget: CopyBudget,
    behaviour: Behaviour | None,
) -> dict[int, ModuleCalls]:
    calls: dict[int, ModuleCalls] = {}
    under_way: list[_UnderWay] = []
    watch = behaviour or Behaviour()

    def before(called: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        with watch.pause():
            begun = _UnderWay(open_call(called, given, named), watch.begin(), watch.whole_state_reads)
            under_way.append(begun)
            mine = calls.setdefault(id(called), ModuleCalls())
            mine.seen += 1
            if len(mine.kept) < _CALLS_SEEN:
                copied_args, copied_kwargs = snapshot((given, named), budget=budget)
                begun.call = Call(copied_args, copied_kwargs, inner=begun.shapes.calls)
                mine.kept.append(begun.call)

    def after(called: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        with watch.pause():
            while under_way and (begun := under_way.pop()).shapes.child != id(called):
                pass  # a call that raised, which its caller caught
            if behaviour is not None:
                digest = behaviour.close(begun.begin)
            if begun.call is not None and behaviour is not None:
                begun.call.behaviour = f"{digest} {describe_value(output)}"
                begun.call.reads_whole_state = watch.whole_state_reads > begun.reads
            if under_way:
                under_way[-1].shapes.calls.append(close_call(begun.shapes, given, named, output))

    with restore_afterwards(module), room_for_hooks(), ExitStack() as stack:
        # prepended, so that inputs are seen before hooks of the model's own change them: an export runs those again
        for child in module.modules():
            if isinstance(child, torch.jit.ScriptModule):
                continue  # takes no hooks of ours
            stack.callback(child.register_forward_pre_hook(before, prepend=True, with_kwargs=True).remove)
            stack.callback(child.register_forward_hook(after, prepend=True, with_kwargs=True).remove)
        own_args, own_kwargs = snapshot((args, kwargs), budget=CopyBudget(left=2**62))
        with behaviour.record() if behaviour is not None else nullcontext():
            output = module(*own_args, **own_kwargs)
        with suppress(Exception):  # of classes of the target
            calls[id(module)].returned = _classes_in(output)
    return calls


def _classes_in(output: Any) -> tuple[str, ...]:
    kinds = (type(leaf) for leaf in tree_leaves(output) if not isinstance(leaf, (torch.Tensor, *PLAIN_KINDS)))
    return tuple(dict.fromkeys(map(text_of, kinds)))


@contextmanager
def room_for_hooks() -> Iterator[None]:
    """Within it calls may be nested deeper: a module with hooks takes four frames of Python where one without takes
    three, and what a hook itself calls."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + limit // 2 + 200)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def add_dims(first: dict[int, ModuleCalls], second: dict[int, ModuleCalls]) -> set[int]:
    """Mark in `first` what differs in `second`, call by call; returns the modules whose calls cannot be compared.

    Where a dynamic size is 0 or 1, which torch takes for a constant, the other capture's inputs are used.
    """
    apart: set[int] = set()
    for key, calls in first.items():
        others = second.get(key)
        if others is None or others.seen != calls.seen:
            apart.add(key)
            continue
        for call, other in zip(calls.kept, others.kept, strict=False):
            mine, theirs = leaves_of(call.args, call.kwargs), leaves_of(other.args, other.kwargs)
            call.inner_there = other.inner
            dims = differing_dims(mine, theirs)
            if dims is None:
                apart.add(key)
            call.dims = dims or {}
            call.sizes = {place: (size_at(mine, place), size_at(theirs, place)) for place in each_dim(call.dims)}
            if has_size_below_two(mine, call.dims) and not has_size_below_two(theirs, call.dims):
                call.args, call.kwargs = other.args, other.kwargs
    return apart

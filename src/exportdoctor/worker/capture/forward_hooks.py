"""Records the inputs of every submodule in one forward pass, and restores the model, instance attributes included."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from exportdoctor.targets.eager import restore_afterwards
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
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dims: dict[int, tuple[int, ...]] = field(default_factory=dict)
    times: int = 1
    sizes: dict[InputDim, tuple[int, int]] = field(default_factory=dict)
    axes: dict[InputDim, str] = field(default_factory=dict)
    inner: list[CallShapes] = field(default_factory=list)
    inner_there: list[CallShapes] | None = None


@dataclass
class ModuleCalls:
    """The calls of one module: the first few that were kept, and how many there were."""

    kept: list[Call] = field(default_factory=list)
    seen: int = 0


def record_calls(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, budget: CopyBudget
) -> dict[int, ModuleCalls]:
    """Run `module(*args, **kwargs)` once and return each called submodule's calls by `id(submodule)`.

    Raises whatever the forward raises; hooks are gone and state is back in either case.
    """
    calls: dict[int, ModuleCalls] = {}
    under_way: list[OpenCall] = []

    def before(called: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        under_way.append(begun := open_call(called, given, named))
        mine = calls.setdefault(id(called), ModuleCalls())
        mine.seen += 1
        if len(mine.kept) < _CALLS_SEEN:
            copied_args, copied_kwargs = snapshot((given, named), budget=budget)
            mine.kept.append(Call(copied_args, copied_kwargs, inner=begun.calls))

    def after(called: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        while under_way and (begun := under_way.pop()).child != id(called):
            pass  # a call that raised, which its caller caught
        if under_way:
            under_way[-1].calls.append(close_call(begun, given, named, output))

    with restore_afterwards(module), torch.no_grad():
        # prepended, so that inputs are seen before hooks of the model's own change them: an export runs those again
        handles = [
            child.register_forward_pre_hook(before, prepend=True, with_kwargs=True) for child in module.modules()
        ]
        handles += [child.register_forward_hook(after, prepend=True, with_kwargs=True) for child in module.modules()]
        own_args, own_kwargs = snapshot((args, kwargs), budget=CopyBudget(left=2**62))
        try:
            module(*own_args, **own_kwargs)
        finally:
            for handle in handles:
                handle.remove()
    return calls


def add_dims(first: dict[int, ModuleCalls], second: dict[int, ModuleCalls]) -> None:
    """Mark in `first` what differs in `second`, call by call.

    Where a dynamic size is 0 or 1, which torch takes for a constant, the other capture's inputs are used.
    """
    for key, calls in first.items():
        others = second.get(key)
        if others is None or others.seen != calls.seen:
            continue
        for call, other in zip(calls.kept, others.kept, strict=False):
            mine, theirs = leaves_of(call.args, call.kwargs), leaves_of(other.args, other.kwargs)
            call.inner_there = other.inner
            call.dims = differing_dims(mine, theirs) or {}
            call.sizes = {place: (size_at(mine, place), size_at(theirs, place)) for place in each_dim(call.dims)}
            if has_size_below_two(mine, call.dims) and not has_size_below_two(theirs, call.dims):
                call.args, call.kwargs = other.args, other.kwargs

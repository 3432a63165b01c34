"""One forward pass that tells every submodule's inputs. The model is left as it was, instance attributes included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from exportdoctor.worker.dims import differing, leaves_of, too_small
from exportdoctor.worker.snapshot import Budget, snapshot

CALLS_KEPT = 8
_BUFFER_BYTES = 256 * 2**20
_TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks",
           "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")  # fmt: skip


@dataclass
class Call:
    """One call of a module, its inputs copied before it ran. `dims` are the dynamic dimensions by leaf index."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dims: dict[int, tuple[int, ...]] = field(default_factory=dict)
    times: int = 1


@dataclass
class Calls:
    """The calls of one module: the first few that were kept, and how many there were."""

    kept: list[Call] = field(default_factory=list)
    seen: int = 0


def record(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, budget: Budget
) -> dict[int, Calls]:
    """Run `module(*args, **kwargs)` once and return each called submodule's calls by `id(submodule)`.

    Raises whatever the forward raises; hooks are gone and state is back in either case.
    """
    calls: dict[int, Calls] = {}

    def before(called: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        mine = calls.setdefault(id(called), Calls())
        mine.seen += 1
        if len(mine.kept) < CALLS_KEPT * 4:
            copied_args, copied_kwargs = snapshot((given, named), budget=budget)
            mine.kept.append(Call(copied_args, copied_kwargs))

    with unchanged(module), torch.no_grad():
        # prepended, so that inputs are seen before hooks of the model's own change them: an export runs those again
        handles = [
            child.register_forward_pre_hook(before, prepend=True, with_kwargs=True) for child in module.modules()
        ]
        own_args, own_kwargs = snapshot((args, kwargs), budget=Budget(left=2**62))
        try:
            module(*own_args, **own_kwargs)
        finally:
            for handle in handles:
                handle.remove()
    return calls


@contextmanager
def unchanged(module: torch.nn.Module) -> Iterator[None]:
    """Put every attribute, parameter, buffer and hook of `module` and its descendants back at the end."""
    children = list(module.modules())
    attributes = [dict(child.__dict__) for child in children]
    tables = [{name: dict(child.__dict__[name]) for name in _TABLES if name in child.__dict__} for child in children]
    buffers = _buffer_copies(module)
    modes = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(modes)
        for child, before, table in zip(children, attributes, tables, strict=True):
            child.__dict__.clear()
            child.__dict__.update(before)
            for name, entries in table.items():
                child.__dict__[name].clear()
                child.__dict__[name].update(entries)
        for buffer, version, copied in buffers:
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(copied)


def _buffer_copies(module: torch.nn.Module) -> list[tuple[torch.Tensor, int, torch.Tensor]]:
    """Copies of the buffers with real values, as long as they are small: a forward may write into them."""
    real = [b for b in module.buffers() if type(b) is torch.Tensor and b.device.type != "meta"]
    if sum(buffer.numel() * buffer.element_size() for buffer in real) > _BUFFER_BYTES:
        return []
    return [(buffer, buffer._version, buffer.detach().clone()) for buffer in real if not buffer.is_inference()]


def add_dims(first: dict[int, Calls], second: dict[int, Calls]) -> None:
    """Mark in `first` what differs in `second`, call by call; where a dynamic size is 0 or 1, take the other's inputs."""
    for key, calls in first.items():
        others = second.get(key)
        if others is None or others.seen != calls.seen:
            continue
        for call, other in zip(calls.kept, others.kept, strict=False):
            mine, theirs = leaves_of(call.args, call.kwargs), leaves_of(other.args, other.kwargs)
            call.dims = differing(mine, theirs) or {}
            if too_small(mine, call.dims) and not too_small(theirs, call.dims):
                call.args, call.kwargs = other.args, other.kwargs

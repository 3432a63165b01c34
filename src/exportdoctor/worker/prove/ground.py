"""Whether a proof could see a fault: each submodule and each input is disturbed in turn, and the outputs must move.

A submodule whose outputs can be changed unseen is not proved by outputs that agree.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from exportdoctor.core.records.outcome import Ground
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import copy_inputs, run_once, same_values
from exportdoctor.torch_internals.module_proxies import state_id
from exportdoctor.torch_internals.trees import tree_map
from exportdoctor.worker.prove.allowed_error import is_fill_value
from exportdoctor.worker.prove.compare_outputs import compare_outputs
from exportdoctor.worker.prove.object_walk import map_tensors

_SHARE, _COARSE_SHARE = 0.1, 1.0
"""The size of a disturbance as a share of the tensor's own spread, and in half precision, where proofs allow more."""

_SEED = 11
_LARGE = 8192
"""From here on a number may stand for a masked place."""

_SECONDS = 10.0
"""Processor time after which the rest is left out; a small model needs two or three."""


def disturb_each(module: torch.nn.Module, inputs: Inputs, names: Mapping[int, str]) -> Ground:
    """Disturb the output of each submodule that `module(*inputs)` calls, and each tensor of the inputs.

    Seen is what moves an output by more than a proof allows, or makes eager refuse its inputs. A submodule is seen if
    one that it calls is. `names` maps `state_id(submodule)` to its FQN. Raises what eager raises.
    """
    started, nesting = time.process_time(), _Nesting()
    with nesting.record(module):
        wanted = _tensors(run_once(module, inputs))

    def is_seen(changed: Inputs = inputs) -> bool:
        try:
            return not compare_outputs("", _tensors(run_once(module, changed)), wanted).holds
        except Exception:
            return True

    unseen: list[str] = []
    tried = left = 0
    seen: set[int] = set()
    for key, (child, inner) in nesting.calls.items():
        if inner & seen:
            tried += 1
            seen.add(key)
            continue
        if time.process_time() - started > _SECONDS:
            left += 1
            continue
        with _disturbed_output(child) as disturbed:
            shown = is_seen()
        if not disturbed:
            left += 1
            continue
        tried += 1
        if shown:
            seen.add(key)
        else:
            unseen.append(names.get(state_id(child), type(child).__name__))
    for name, changes in _disturbed_inputs(inputs):
        first = next(changes, None)
        if first is None or time.process_time() - started > _SECONDS:
            left += 1
            continue
        tried += 1
        if not any(is_seen(changed) for changed in (first, *changes)):
            unseen.append(name)
    return Ground(tried=tried, unseen=tuple(sorted(unseen)), left=left)


class _Nesting:
    """The submodules in the order in which their first calls ended, each with those that it called."""

    def __init__(self) -> None:
        self.calls: dict[int, tuple[torch.nn.Module, set[int]]] = {}
        self._open: list[tuple[int, set[int]]] = []

    @contextmanager
    def record(self, root: torch.nn.Module) -> Iterator[None]:
        """Record every call of a submodule inside, of `root` none."""
        handles = []
        for child in root.modules():
            if child is not root and not isinstance(child, torch.jit.ScriptModule):
                handles += [child.register_forward_pre_hook(self._enter), child.register_forward_hook(self._leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        self._open.append((id(module), set()))

    def _leave(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        inner: set[int] = set()
        while self._open:
            key, called = self._open.pop()
            inner |= called
            if key == id(module):
                break
            inner.add(key)  # a call that raised, which its caller caught
        _, known = self.calls.setdefault(id(module), (module, set()))
        known |= inner
        if self._open:
            self._open[-1][1].add(id(module))


@contextmanager
def _disturbed_output(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Yields a list that gets what is put in place of tensors: none where there are no others to put, as in what a
    generator makes later, in objects that are no pytree nodes, and in masks of fill values alone."""
    disturbed: list[torch.Tensor] = []

    def change_leaf(leaf: Any) -> Any:
        new = next(_others(leaf), None) if isinstance(leaf, torch.Tensor) else None
        if new is None:
            return leaf
        disturbed.append(new)
        return new

    handle = module.register_forward_hook(lambda _, __, output: tree_map(change_leaf, output))
    try:
        yield disturbed
    finally:
        handle.remove()


def _disturbed_inputs(inputs: Inputs) -> Iterator[tuple[str, Iterator[Inputs]]]:
    """For each tensor of the inputs its argument's name, and the inputs with it disturbed in one way or another."""
    args, kwargs = inputs
    for name, value in [*((f"args[{place}]", arg) for place, arg in enumerate(args)), *kwargs.items()]:
        found = _tensors(copy_inputs(value))
        for number, leaf in enumerate(found):
            if leaf.numel():
                label = name if len(found) == 1 else f"{name}, tensor {number}"
                yield label, (_with_changed(inputs, name, number, new) for new in _others(leaf))


def _tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in it, also those in classes that are no pytree nodes."""
    found: list[torch.Tensor] = []

    def visit(_: str, leaf: torch.Tensor) -> torch.Tensor:
        found.append(leaf)
        return leaf

    map_tensors(value, visit)
    return found


def _with_changed(inputs: Inputs, name: str, number: int, new: torch.Tensor) -> Inputs:
    """The inputs with another tensor in place of tensor `number` of the argument `name`."""
    args, kwargs = copy_inputs(inputs)
    counter = iter(range(1_000_000_000))

    def visit(_: str, leaf: torch.Tensor) -> torch.Tensor:
        return new if next(counter) == number else leaf

    new_args = [map_tensors(arg, visit) if name == f"args[{place}]" else arg for place, arg in enumerate(args)]
    new_kwargs = {key: map_tensors(value, visit) if key == name else value for key, value in kwargs.items()}
    return tuple(new_args), new_kwargs


def _others(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor disturbed in one way and another; nothing of a layout or dtype for which torch cannot do that."""
    for change in (disturb, _other_element):
        try:
            new = change(value)
            is_other = new is not value and not same_values(new, value)
        except (NotImplementedError, RuntimeError):
            continue
        if is_other:
            yield new


def disturb(value: torch.Tensor) -> torch.Tensor:
    """The tensor with noise on all but its fill values; whole numbers one place further on."""
    if value.dtype == torch.bool and not value.dim():
        return value.logical_not()
    if not value.is_floating_point():
        return value.roll(1, -1) if value.dim() and not value.is_complex() else value + 1
    computed = value.isfinite() & ~is_fill_value(value)
    moderate = computed & (value.abs() < _LARGE)  # in a mask, zeros are the only others
    computed = moderate if bool(moderate.any()) else computed
    kept = value.detach()[computed].to(torch.float32)
    if not kept.numel():
        return value
    spread = float(kept.std(unbiased=False)) or float(kept.abs().max()) or 1.0
    share = _SHARE if torch.finfo(value.dtype).bits >= 32 else _COARSE_SHARE
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(_SEED)).to(value.device)
    return torch.where(computed, value.detach() + (share * spread * noise).to(value.dtype), value.detach())


def _other_element(value: torch.Tensor) -> torch.Tensor:
    """The tensor with another first element: a mask of ones stays the same when it is rolled."""
    if value.is_floating_point() or value.is_complex():
        return disturb(value)
    changed = value.clone()
    first = changed.view(-1)[:1] if changed.is_contiguous() else changed[(slice(0, 1),) * changed.dim()]
    first.copy_(first == 0)
    return changed

"""The input sets on which shims must give eager's numbers: the example, other sizes and values, a padded batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from exportdoctor.shims import ExportCall, Inputs
from exportdoctor.targets.eager import run_in_a_row
from exportdoctor.torch_internals.trees import tree_flatten
from exportdoctor.worker.prove.input_set import InputSet, pad_batch, padding_in

_SEED = 20
_OTHER_NUMBERS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda leaf: leaf.roll(1, -1),
    lambda leaf: leaf + 1,
    lambda leaf: leaf - 1,
)
"""In this order; the first that eager takes."""


def cure_inputs(call: ExportCall) -> Iterator[InputSet]:
    """The example first. Raises what eager raises for it and for the other sizes; what it refuses of the rest is left
    out."""
    example = (call.args, call.kwargs)
    outputs = run_in_a_row(call.module, example, times=2)
    yield InputSet(title=_sizes(example), inputs=example, outputs=outputs, same=True)
    for other in call.more_inputs:
        yield InputSet(title=_sizes(other), inputs=other, outputs=run_in_a_row(call.module, other))
    floats = _change_tensors(example, _redraw)
    if floats is not None and (outputs := _eager(call, floats)):
        yield InputSet(title=f"{_sizes(example)}, other values", inputs=floats, outputs=outputs, same=True)
    holes = pad_batch(example)
    if holes is not None and (outputs := _eager(call, holes)):
        title = f"{_sizes(example)}, {padding_in(holes)} padded"
        yield InputSet(title=title, inputs=holes, outputs=outputs, same=True)
    for change in _OTHER_NUMBERS:
        whole = _change_tensors(example, partial(_renumber, change=change))
        if whole is not None and (outputs := _eager(call, whole)):
            title = f"{_sizes(example)}, other whole numbers"
            yield InputSet(title=title, inputs=whole, outputs=outputs, same=True, made_up=True)
            return


def _eager(call: ExportCall, inputs: Inputs) -> tuple[Any, ...]:
    try:
        return run_in_a_row(call.module, inputs)
    except Exception:
        return ()


def _change_tensors(inputs: Inputs, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs | None:
    """The inputs with `change` applied to their tensors; None if that changes nothing."""
    different = False

    def visit(leaf: torch.Tensor) -> torch.Tensor:
        nonlocal different
        new = change(leaf) if leaf.numel() else leaf
        different = different or (new is not leaf and not torch.equal(new, leaf))
        return new

    changed: Inputs = map_tensors(copy.deepcopy(inputs), visit)
    return changed if different else None


def map_tensors(value: Any, visit: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with each tensor in it visited, also those in classes that are no pytree nodes, such as caches."""
    match value:
        case torch.Tensor():
            return visit(value)
        case dict():
            for key in list(value):
                value[key] = map_tensors(value[key], visit)
        case list():
            value[:] = [map_tensors(item, visit) for item in value]
        case tuple():
            items = [map_tensors(item, visit) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        case _ if hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module) and not callable(value):
            for name, item in list(vars(value).items()):
                object.__setattr__(value, name, map_tensors(item, visit))
    return value


def _redraw(leaf: torch.Tensor) -> torch.Tensor:
    """A floating tensor with new random values of its own mean and spread; any other as it is."""
    if not leaf.is_floating_point() or not bool(leaf.isfinite().all()):
        return leaf
    values = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(_SEED))
    spread = leaf.detach().std() if leaf.numel() > 1 else leaf.detach().abs().max()
    drawn = values.to(device=leaf.device, dtype=leaf.dtype) * spread + leaf.detach().mean()
    return drawn.requires_grad_(leaf.requires_grad)


def _renumber(leaf: torch.Tensor, *, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A tensor of whole numbers or truth values with others in it; any other as it is."""
    if leaf.is_floating_point() or leaf.is_complex():
        return leaf
    if leaf.dtype == torch.bool:
        return leaf.logical_not()
    return change(leaf) if leaf.dim() else leaf + 1


def _sizes(inputs: Inputs) -> str:
    """The shapes of the inputs' tensors, the first few, as a row's title."""
    found = [list(leaf.shape) for leaf in tree_flatten(inputs)[0] if isinstance(leaf, torch.Tensor)]
    shapes = [" x ".join(map(str, shape)) or "scalar" for shape in found]
    return ", ".join(shapes[:6]) + (f" and {len(shapes) - 6} more" if len(shapes) > 6 else "")

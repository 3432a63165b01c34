"""Runs eager with a number around each tensor: an answer that depends on it reads memory that is not its own."""

from __future__ import annotations

from typing import Any

import torch

from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import run_calls, storage_id
from exportdoctor.torch_internals.tracing_modes import dispatch_mode_class
from exportdoctor.torch_internals.trees import tree_leaves, tree_map
from exportdoctor.worker.prove.compare_outputs import compare_outputs, tensors_in

_NUMBERS = (50.0, -3.0)
_LEAST = 64
"""Elements on either side of a small tensor; there are as many as it has itself, and as the largest input has, whose
sizes an operator may take for those of another."""


def depends_on_other_memory(module: torch.nn.Module, inputs: Inputs) -> bool:
    """Whether the module's answer changes with what memory holds that its tensors do not, or that nobody wrote."""
    answers = []
    largest = max((leaf.numel() for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)), default=0)
    for number in (None, *_NUMBERS):
        mode = _Surrounded(number, largest) if number is not None else None

        def call(given: Inputs, mode: _Surrounded | None = mode) -> Any:
            if mode is None:
                return module(*given[0], **given[1])
            args, kwargs = tree_map(mode.surround, given)
            with mode:
                return module(*args, **kwargs)

        try:
            answers.append(tensors_in(run_calls(module, [inputs], how=call)[0].output))
        except Exception:
            return False  # it does not run so: nothing is known
    return not all(compare_outputs("", answer, answers[0]).holds for answer in answers[1:])


class _Surrounded(dispatch_mode_class()):  # type: ignore[misc]
    """Moves what operators make into larger memory, which is full of a number."""

    def __init__(self, number: float, largest: int) -> None:
        super().__init__()
        self._number = number
        self._least = max(_LEAST, largest)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {storage_id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        unwritten = "empty" in func.__name__

        def move(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or storage_id(leaf) in given:
                return leaf
            moved = self.surround(leaf)
            return moved.fill_(self._in(leaf.dtype)) if unwritten and moved is not leaf else moved

        return tree_map(move, made)

    def surround(self, leaf: Any) -> Any:
        """The same values with the number before and behind; what has gaps, or is no plain tensor, stays."""
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided or leaf.is_quantized:
            return leaf
        steps = zip(leaf.shape, leaf.stride(), strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in steps) if leaf.numel() else 0
        if extent != leaf.numel() or leaf.is_conj() or leaf.is_neg() or leaf._is_zerotensor():
            return leaf
        around = max(self._least, extent)
        memory = torch.full((extent + 2 * around,), self._in(leaf.dtype), dtype=leaf.dtype, device=leaf.device)
        return memory.as_strided(leaf.shape, leaf.stride(), around).copy_(leaf)

    def _in(self, dtype: torch.dtype) -> Any:
        if dtype == torch.bool:
            return self._number > 0
        return self._number if dtype.is_floating_point or dtype.is_complex else abs(int(self._number))

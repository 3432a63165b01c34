"""What eager does with an input set: the operators it runs, what it asks of values, and how it uses whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from exportdoctor.torch_internals.tracing_modes import dispatch_mode_class

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
PASSED_ON = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "slice", "select", "permute", "t"),
        *("transpose", "_to_copy", "to", "clone", "alias", "detach", "unbind", "split"),
    )
)
"""Operators that pass an input's numbers on as they are."""


class EagerTrace(dispatch_mode_class()):  # type: ignore[misc]
    """Records the operators that run inside. `decisions` tells two runs apart that took other branches.

    `reads` says whether a number was read out of a tensor. `constants` are the numbers with which a tensor was
    compared. `bounds` gives for a whole-number tensor the smallest size that it indexed; it is known for the tensors
    that are followed, by path, and for views of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads = False
        self.constants: set[float] = set()
        self.bounds: dict[str, int] = {}
        self._words: list[Any] = []
        self._paths: dict[int, str] = {}
        self._alive: list[torch.Tensor] = []

    def follow_inputs(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """The tensors, by path, whose use is recorded."""
        self._paths = {id(tensor): path for path, tensor in inputs.items()}
        self._alive = list(inputs.values())

    @property
    def decisions(self) -> int:
        """A digest of the operators that ran and of the truth values that were read."""
        return hash(tuple(self._words))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        self._words.append(name)
        if name == "_local_scalar_dense":
            self.reads = True
            if isinstance(result, bool):
                self._words.append(result)
        elif name in _COMPARISONS:
            other = args[1]
            if not isinstance(other, torch.Tensor) or other.dim() == 0:
                self.constants.add(float(other))
        self._follow(name, args, result)
        return result

    def _follow(self, name: str, args: Any, result: Any) -> None:
        match name:
            case "embedding":
                self._note_bound(args[1], args[0].shape[0])
            case "index" | "index_put" | "_unsafe_index" | "index_put_":
                for dim, index in enumerate(args[1]):
                    if isinstance(index, torch.Tensor):
                        self._note_bound(index, args[0].shape[dim] if dim < args[0].dim() else 0)
            case "index_select" | "gather" | "scatter" | "scatter_" | "index_add" | "index_copy" | "scatter_add":
                self._note_bound(args[2], args[0].shape[args[1]] if args[0].dim() else 1)
            case _ if name in PASSED_ON and (path := self._paths.get(id(args[0]))) is not None:
                for made in result if isinstance(result, list | tuple) else (result,):
                    self._paths[id(made)] = path
                    self._alive.append(made)

    def _note_bound(self, index: torch.Tensor, size: int) -> None:
        path = self._paths.get(id(index))
        if path is not None and index.dtype not in (torch.bool, torch.uint8):  # those choose elements, and count none
            self.bounds[path] = min(size, self.bounds.get(path, size))

"""Modules that take an object of a class of one's own, drawn: what it holds, what happens to it, if it comes back."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

Change = Literal["none", "in place", "new tensor", "number", "new attribute"]


@dataclass
class Held:
    """A dataclass with a computed field; further attributes are set on the object."""

    rows: Tensor
    total: Tensor = field(init=False)
    factor = 1.0

    def __post_init__(self) -> None:
        self.total = self.rows.sum(0)


class Plain:
    """The same without fields."""

    factor = 1.0

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.total = rows, rows.sum(0)


@dataclass(frozen=True)
class Drawn:
    """What was drawn; `hidden` is set on the object over the class's attribute, `number` beside it."""

    dataclass: bool
    hidden: bool
    number: bool
    change: Change
    returned: bool

    def inputs(self, seed: int, *, length: int = 3, number: int = 2) -> tuple[Tensor, Any]:
        """x and the object, for these values."""
        generator = torch.Generator().manual_seed(seed)
        x, rows = torch.randn(2, 3, generator=generator), torch.randn(length, 3, generator=generator)
        held: Any = Held(rows) if self.dataclass else Plain(rows)
        if self.hidden:
            held.factor = torch.randn((), generator=generator)
        if self.number:
            held.number = number
        return x, held


class Uses(nn.Module):
    """Reads all that the object holds, and changes it as drawn."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self.drawn = drawn

    def forward(self, x: Tensor, held: Any) -> Any:
        found = x * held.factor + held.total + held.rows.mean(0) * getattr(held, "number", 1)
        match self.drawn.change:
            case "in place":
                held.rows.add_(1)
            case "new tensor":
                held.rows = torch.cat([held.rows, x])
            case "number":
                held.number = getattr(held, "number", 0) + 1
            case "new attribute":
                held.last = x * 2
        return (found, held) if self.drawn.returned else found


def contents(value: Any) -> list[Any]:
    """Tensors and numbers of an answer, those of an object by name."""
    if isinstance(value, tuple | list):
        return [leaf for one in value for leaf in contents(one)]
    if isinstance(value, Tensor | int | float):
        return [value]
    return [leaf for name in sorted(vars(value)) for leaf in contents(vars(value)[name])]


def agree(one: Any, other: Any) -> bool:
    """Whether two answers hold the same."""
    left, right = contents(one), contents(other)
    return len(left) == len(right) and all(
        torch.allclose(a, b, atol=1e-5) if isinstance(a, Tensor) else a == b for a, b in zip(left, right, strict=True)
    )


def eager(drawn: Drawn, inputs: Any) -> tuple[Any, Any]:
    """What eager answers, and the object afterwards."""
    x, held = copy.deepcopy(inputs)
    return Uses(drawn)(x, held), held


DRAWN = st.builds(
    Drawn,
    dataclass=st.booleans(),
    hidden=st.booleans(),
    number=st.booleans(),
    change=st.sampled_from(["none", "in place", "new tensor", "number", "new attribute"]),
    returned=st.booleans(),
)

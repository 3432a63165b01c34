"""Factories for the tests of exports: each fails in one later stage."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim


@torch.library.custom_op("export_targets::smooth", mutates_args=())
def smooth(x: torch.Tensor) -> torch.Tensor:
    """An operator that ONNX has no translation for."""
    return (x + x.roll(1, 0)) / 2


smooth.register_fake(torch.empty_like)


class Smooth(torch.nn.Module):
    """The submodule that is at fault."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        return smooth(x)


class Block(torch.nn.Module):
    """A layer, and the submodule given."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, 4)."""
        return self.inner(self.layer(x))


class Grows(torch.nn.Module):
    """Leaves the range of float16, and comes back into it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        return ((x + 300) * (x + 300)) / 1000


class Stateful(torch.nn.Module):
    """Its answer depends on how often it was called: a program knows only one of them."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        Stateful.calls += 1
        return x * Stateful.calls


class Counter(torch.nn.Module):
    """Its answer depends on how often it was called; the example shows it only from the second call on."""

    n = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        self.n += 1
        return x * self.n


class Tallies(torch.nn.Module):
    """Its program takes the container apart, and leaves it as it was."""

    def forward(self, x: torch.Tensor, tally: dict[str, torch.Tensor]) -> torch.Tensor:
        """The same shape."""
        tally["total"] = tally["total"] + x.sum(0)
        return x * 2


def _rows(module: torch.nn.Module, **more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    return {"module": module.eval(), "args": (torch.randn(3, 4),), "dynamic_shapes": ({0: Dim.DYNAMIC},), **more}


def plain() -> Any:
    """Exports as it is."""
    return _rows(Block(torch.nn.ReLU()))


def untranslatable() -> Any:
    """torch.onnx has nothing for an operator of `inner.inner`."""
    return _rows(Block(Block(Smooth())))


def overflowing() -> Any:
    """In float16 a value in between is not finite."""
    return _rows(Block(Grows()))


def counting() -> Any:
    """The program computes other numbers than eager."""
    return _rows(Stateful())


class Positive(torch.nn.Module):
    """A check of its input's values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        if x.min() < 0:
            raise ValueError("negative")
        return x.sqrt()


def checked() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Exports with check-as-assertion."""
    return Positive(), (torch.rand(3, 4) + 1,)


def counter() -> Any:
    """The program knows the first call alone."""
    return _rows(Counter())


def tally() -> Any:
    """The program drops what eager adds to an input."""
    torch.manual_seed(0)
    return {"module": Tallies().eval(), "args": (torch.randn(3, 4), {"total": torch.zeros(4)})}


class LongOrShort(torch.nn.Module):
    """Goes another way for few rows, which its program refuses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        return x * 2 if x.shape[0] > 2 else x - 1


def long_or_short() -> Any:
    """Right from three rows on."""
    return _rows(LongOrShort())


class Reduced(torch.nn.Module):
    """ReduceMean got a new attribute in opset 18."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, 1)."""
        return x.mean(-1, keepdim=True)


def reduced() -> Any:
    """Rows, each of which becomes its mean."""
    return _rows(Reduced())


def convolved() -> Any:
    """A convolution, which takes bfloat16 from opset 22 on."""
    return torch.nn.Conv1d(1, 2, 3).eval(), (torch.randn(2, 1, 8),)

"""Small networks whose children return every kind of value, for what is asked with the children replaced."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import Dim


def refuse(hidden: Tensor) -> None:
    """What no export gets past: a branch on a value."""
    if hidden.sum() > 0:
        pass


class Nest(nn.Module):
    """Returns a dict with a tuple, a None, a number and a text in it."""

    def forward(self, hidden: Tensor) -> dict[str, object]:
        refuse(hidden)
        return {"pair": (hidden + 1, None), "count": 3, "mode": "same"}


class Same(nn.Module):
    """Returns its input itself, and a view of it."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        refuse(hidden)
        return hidden, hidden.view(-1)


class Flat(nn.Module):
    """Sizes that are a product, an input's own and a difference."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, int, Tensor]:
        refuse(hidden)
        return hidden.reshape(-1, 8), hidden.shape[1], hidden[:, 1:]


class Parent(nn.Module):
    """Fails behind its children, in its last line."""

    def __init__(self) -> None:
        super().__init__()
        self.nest = Nest()
        self.same = Same()
        self.flat = Flat()
        self.never = nn.Linear(2, 2)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        hidden = self.nest(frames)["pair"][0]
        itself, view = self.same(hidden)
        assert itself is hidden
        rows, steps, shorter = self.flat(itself)
        fewer, less, _ = self.flat(itself[:, 1:])
        hidden = rows.reshape(frames.shape[0], steps, 8) + view.reshape(itself.shape)
        hidden = hidden[:, 1:] + shorter + fewer.reshape(frames.shape[0], less, 8)
        return hidden * int(lengths.max())


def build() -> dict[str, object]:
    """frames float32 (2, 6, 8), both sizes dynamic; again with (3, 9, 8)."""
    other = (torch.randn(3, 9, 8), torch.tensor([3, 5]))
    return {
        "module": Parent().eval(),
        "args": (torch.randn(2, 6, 8), torch.tensor([3, 5])),
        "dynamic_shapes": {"frames": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, "lengths": None},
        "more_inputs": ((other, {}),),
    }


@dataclass
class Store:
    """Keeps what it is given."""

    kept: Tensor | None = None


class Writer(nn.Module):
    def forward(self, hidden: Tensor, store: Store) -> Tensor:
        refuse(hidden)
        store.kept = hidden
        return hidden


class Keeper(nn.Module):
    """Gives its child a place to write into."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = Writer()

    def forward(self, frames: Tensor) -> Tensor:
        store = Store()
        self.writer(frames, store)
        return store.kept * int(frames.argmax())  # type: ignore[operator, return-value]


def keeper() -> tuple[nn.Module, tuple[Tensor]]:
    """frames float32 (2, 3)."""
    return Keeper().eval(), (torch.randn(2, 3),)


class Rows(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        refuse(hidden)
        return hidden * 2.0


class Chooser(nn.Module):
    """Its own code exports; its child is given as many rows as the data says."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Rows()

    def forward(self, frames: Tensor, keep: Tensor) -> Tensor:
        kept = frames[keep]
        return (self.rows(kept) + kept).sum() + self.rows(frames).sum()


def chooser() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """frames float32 (6, 8), keep bool (6,)."""
    return Chooser().eval(), (torch.randn(6, 8), torch.tensor([1, 0, 1, 1, 0, 0]).bool())


class Window(nn.Module):
    """Counts the frames in a Python loop; no failure depends on the number of rows."""

    def forward(self, frames: Tensor) -> Tensor:
        return sum((frames[:, step] for step in range(frames.shape[1])), torch.zeros(()))


def window() -> dict[str, object]:
    """frames float32 (4, 6), both sizes dynamic under the names `batch` and `sequence`; again with (5, 9)."""
    return {
        "module": Window().eval(),
        "args": (torch.randn(4, 6),),
        "dynamic_shapes": {"frames": {0: Dim("batch"), 1: Dim("sequence")}},
        "more_inputs": (((torch.randn(5, 9),), {}),),
    }


class Box:
    """No container that torch.export knows."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.was_seen = value, False


class Reads(nn.Module):
    """Changes what it is given, so that nothing can take its place."""

    def forward(self, frames: Tensor, box: Box) -> Tensor:
        box.was_seen = True
        return frames + box.value


class Passes(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, frames: Tensor, box: Box) -> Tensor:
        found: Tensor = self.inner(frames, box)
        return found


def boxed() -> dict[str, object]:
    """frames float32 (3, 4), the number of rows dynamic, and a box, for which sizes are given as well."""
    return {
        "module": Passes(Passes(Reads())).eval(),
        "kwargs": {"frames": torch.randn(3, 4), "box": Box(torch.randn(3, 4))},
        "dynamic_shapes": {"frames": {0: Dim.DYNAMIC}, "box": [{0: Dim.DYNAMIC}]},
    }


class Sampled(nn.Module):
    """A size that is bounded by a slice, and fixed by a fraction of it that Python takes for a number."""

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, :4]
        count = int(x.shape[1] * 0.5)
        for step in range(count):
            first = first + x[:, step, None]
        return first


def sampled() -> tuple[object, ...]:
    size = torch.export.Dim("size", min=4)
    return Sampled(), (torch.ones(2, 16),), {}, {"x": {1: size}}

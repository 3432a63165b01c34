"""Modules that compute from whole numbers, most of them what `hoist` makes an input of the program."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import numpy
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.multiprocessing.reductions import StorageWeakRef

from exportdoctor.shims import ExportCall
from shim_cases import grids


def order_of(grid: Tensor) -> Tensor:
    """A window order, int64 (patches,)."""
    parts = []
    for _, height, width in grid.tolist():
        parts += [torch.arange(height) * width + column for column in range(width)]
    return torch.cat(parts)


def sizes_of(grid: Tensor) -> tuple[int, list[int]]:
    heights = [int(height) for _, height, _ in grid.tolist()]
    return max(heights), heights * 2


class Sized(nn.Module):
    """Whole numbers that only shape tensors, and a list whose length differs."""

    def forward(self, patches: Tensor, grids: Tensor) -> Tensor:
        most, heights = sizes_of(grids)
        return patches[:most] * torch.tensor(heights, dtype=torch.float32).sum()


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 2)

    def forward(self, patches: Tensor, shape: Tensor) -> Tensor:
        return self.proj(patches)[order_of(shape)]


class Wrapped(nn.Module):
    """The tower is no submodule that a search would find, and its grid is computed from the input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"a": Tower()})

    def forward(self, pixels: Tensor, half: Tensor) -> Tensor:
        return self.inner["a"](patches=pixels, shape=half * torch.tensor([1, 2, 2]))


class TowerWithTable(Tower):
    """What is computed from its buffer follows from whole numbers too; a constructor makes what no function does."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies = nn.Buffer(torch.arange(2).float())

    def angles(self, shape: Tensor) -> Tensor:
        return order_of(shape).float()[:, None] * self.frequencies * torch.Tensor(numpy.ones(2))

    def forward(self, patches: Tensor, shape: Tensor) -> Tensor:
        return super().forward(patches, shape) + self.angles(shape)


class Hiding(nn.Module):
    """No module lists the tower."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = (TowerWithTable(),)

    def forward(self, patches: Tensor, shape: Tensor) -> Tensor:
        return self.towers[0](patches, shape)  # type: ignore[no-any-return]


def make_local() -> nn.Module:
    """A class that no name leads to, held by another one."""

    class Local(Tower):
        def order(self, shape: Tensor) -> Tensor:
            return order_of(shape)

        def forward(self, patches: Tensor, shape: Tensor) -> Tensor:
            return self.proj(patches)[self.order(shape)]  # type: ignore[no-any-return]

    module = Hiding()
    module.towers = (Local(),)  # type: ignore[assignment]
    return module


class Twice(nn.Module):
    """One function, called for two inputs."""

    def forward(self, patches: Tensor, one: Tensor, other: Tensor) -> Tensor:
        return patches[order_of(one)] + patches[order_of(other)]


class Padded(nn.Module):
    """The number is read where it is needed, beside what depends on floating numbers."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y = x * 2
        longest = int(lengths.max())
        assert isinstance(longest, int)
        mask = torch.arange(longest) < lengths[:, None]
        return y.mean() * mask.sum(1) if lengths.numel() > int("1") else y


class Cropped(nn.Module):
    """`int` of a number that was read already."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        longest = int(lengths.max().item())
        heights = [int(length) for length in lengths.tolist()]
        return x[:longest].sum(0) * min(heights)


class Typed(nn.Module):
    """`int` in another function is a dtype."""

    def ones(self) -> Tensor:
        return torch.ones(4, dtype=int)  # type: ignore[call-overload,no-any-return]

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        longest = lengths.max().item()
        return (x[:longest] if longest > 1 else x).sum(0) * self.ones()


class Reshaped(nn.Module):
    def forward(self, patches: Tensor, shape: Tensor) -> Tensor:
        height, width = int(shape[0, 1].float().ceil()), int(shape[0, 2])
        return patches.reshape(height, width, -1).mean(0).sum(0)


class InLoop(nn.Module):
    """Computes an order in the middle of its forward."""

    def forward(self, patches: Tensor, shape: Tensor) -> Tensor:
        x = patches * 2
        parts = []
        for _, height, width in shape.tolist():
            for column in range(width):
                parts.append(torch.arange(height) * width + column)
        return x[torch.cat(parts)]


class Split(nn.Module):
    """As many images as in the example."""

    def forward(self, patches: Tensor, shape: Tensor) -> Tensor:
        parts = torch.split(patches, [int(count) for count in shape[:, 1] * shape[:, 2]])
        return torch.stack([part.mean(0) for part in parts])


class Listed(nn.Module):
    """Its numbers are read as lists, one of which is nested."""

    def forward(self, patches: Tensor, shape: Tensor) -> Tensor:
        ((_, height, width),) = shape.tolist()
        image = patches.reshape(height, width, -1)
        places = torch.arange(shape.prod(-1).tolist()[0])
        return image.mean(0).sum(0) * places.sum() if height > 1 else image.sum((0, 1))


def lengths(*rows: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(5, 4), torch.tensor(row)) for row in rows]


def pair_of_images(*rows: tuple[int, int, int, int]) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(a * b + c * d, 4), torch.tensor([[1, a, b], [1, c, d]])) for a, b, c, d in rows]


def halves(*rows: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    return [(patches, grid // torch.tensor([1, 2, 2])) for patches, grid in grids(*rows)]


def several(*counts: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(9, 4), torch.tensor([[1, 2 + n, 3] for n in range(count)])) for count in counts]


def pairs(*rows: tuple[int, int]) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(patches, grid, grid[:, [0, 2, 1]].contiguous()) for patches, grid in grids(*rows)]


FREE = {0: Dim.DYNAMIC}


def call_of(module: nn.Module, inputs: list[Any], shapes: Any) -> ExportCall:
    more: tuple[Any, ...] = tuple((row, {}) for row in inputs[1:-1])
    return ExportCall(module=module.eval(), args=inputs[0], dynamic_shapes=shapes, more_inputs=more)


class Mixed(nn.Module):
    """The first read decides by floating numbers, so nothing behind it follows from whole ones alone."""

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        if x.sum() > 1e9:
            count = count + 1
        return x[: int(count.max())]


class Looping(nn.Module):
    """How often it loops is fixed by the trace."""

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        for _ in range(int(count.max())):
            x = x * 2
        return x


def by_values(x: Tensor, grid: Tensor) -> Tensor:
    return torch.arange(grid.tolist()[0][1]) + int(x.sum() > 0)


READS: dict[str, Callable[[Any], Any]] = {
    "in": lambda x: 9.0 in x,
    "is_nonzero": lambda x: torch.is_nonzero(x[0]),
    "equal": lambda x: torch.equal(x, x + 1),
    "complex": lambda x: complex(x[0]).real > 0,
    "text": lambda x: f"{x[0]}" > "0",
    "printed": lambda x: repr(x) > "tensor",
    "array": lambda x: numpy.asarray(x).sum() > 0,
    "count": lambda x: (x > 0).nonzero().shape[0] > 1,
    "mask": lambda x: len(x[x > 0]) > 1,
    "selected": lambda x: x.masked_select(x > 0).numel() > 1,
    "unique": lambda x: torch.unique(x > 0).size(0) > 1,
    "ones": lambda x: torch.ones_like(x[x > 0]).sum() > 1,
    "where": lambda x: torch.where(x > 0)[0].shape[0] > 1,
    "repeated": lambda x: x.repeat_interleave((x > 0).long()).shape[0] > 1,
    "cut": lambda x: x[: (x > 0).sum()].shape[0] > 1,
    "classes": lambda x: nn.functional.one_hot((x > 0).long()).shape[-1] > 1,
    "bins": lambda x: torch.bincount((x > 0).long()).shape[0] > 1,
    "sized": lambda x: torch.zeros((x > 0).sum()).shape[0] > 1,
    "range": lambda x: torch.arange((x > 0).sum()).shape[0] > 1,
    "sparse": lambda x: x.relu().to_sparse().indices().shape[1] > 1,
    "nested": lambda x: len(list(x[x > 0])) > 1,
    "pieces": lambda x: x.tensor_split((x > 0).sum()[None].cpu())[0].shape[0] > 1,
    "listed": lambda x: torch.tensor([x[0], x[1]]).sum() > 0,
    "padded": lambda x: nn.utils.rnn.pad_sequence([x[x > 0], x[:1]]).shape[0] > 1,
    "pieces of one": lambda x: len(x[x > 0].unsafe_split(1)) > 1,
    "operator": lambda x: torch.ops.aten._local_scalar_dense(x[0]) > 0,
    "product": lambda x: torch.cartesian_prod(x[x > 0], x).shape[0] > 4,
}


def by_reading(read: Callable[[Any], Any], x: Tensor, grid: Tensor) -> Tensor:
    if read(x):
        return torch.arange(grid.tolist()[0][1])
    return torch.arange(grid.tolist()[0][1]) + 1


class Holder(nn.Module):
    """It is made while forward runs, of what forward computed."""

    def __init__(self, held: Tensor) -> None:
        super().__init__()
        self.held = held

    def forward(self) -> Tensor:
        return self.held


def by_place(x: Tensor, grid: Tensor) -> Tensor:
    return torch.arange(grid.tolist()[0][1])[x.argmax()]


def by_fill(x: Tensor, grid: Tensor) -> Tensor:
    return torch.full_like(torch.arange(grid.tolist()[0][1]), int(grid.sum())) + grid.new_tensor(x.argmax())


def by_out(x: Tensor, grid: Tensor) -> Tensor:
    made = torch.arange(grid.tolist()[0][1])
    torch.add(made, x.argmax(), out=made)
    return made


def by_holder(x: Tensor, grid: Tensor) -> Tensor:
    holder = Holder((x > 0).long())
    return torch.arange(grid.tolist()[0][1]) + holder().sum()


def by_parameter(module: Any, grid: Tensor) -> Tensor:
    return module.table[grid.tolist()[0][1]] * 1


def by_chance(grid: Tensor) -> Tensor:
    return torch.randperm(grid.tolist()[0][1])


def by_writing(grid: Tensor, out: Tensor) -> Tensor:
    out[0] = grid.tolist()[0][1]
    return out + 1


WAYS = {"place": by_place, "fill": by_fill, "out": by_out}


class Dirty(nn.Module):
    def __init__(self, which: str) -> None:
        super().__init__()
        self.which, self.table = which, nn.Parameter(torch.randn(9))

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        if self.which == "values":
            return x.sum() + by_values(x, grid)
        if self.which in WAYS:
            return x.sum() + WAYS[self.which](x, grid)
        if self.which == "holder":
            return x.sum() + by_holder(x, grid)
        if self.which in READS:
            return x.sum() + by_reading(READS[self.which], x, grid)
        if self.which == "parameter":
            return x.sum() + by_parameter(self, grid)
        if self.which == "chance":
            return x.sum() + by_chance(grid)
        place = torch.zeros(3, dtype=torch.int64)
        return x.sum() + by_writing(grid, place) + place


class Routed(nn.Module):
    """What is computed before `order_of` writes into rows that values choose, and is logged."""

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        made = torch.zeros_like(x)
        places = torch.where(x > 0)[0]
        made.index_add_(0, places, x[places] * 2)
        made[x < -1] = 0
        logging.getLogger(__name__).debug("%s %s", f"{made}", made.sum().item())
        rows = made.shape[0]
        return made.roll(cast(Any, x.argmax())).sum() + order_of(grid).sum() + rows


class Resized(nn.Module):
    """A table of weights, resized to each row's height and width and written into memory without values."""

    def __init__(self, rest: str) -> None:
        super().__init__()
        self.table, self.rest = nn.Parameter(torch.randn(1, 3, 4, 4)), rest

    def note(self) -> None:
        """Called or not for what is in memory, as garbage is collected now or later; nothing follows from it."""

    def resize(self, shapes: Tensor, most: int) -> Tensor:
        table = torch.empty(shapes.shape[0], most, 3)
        if self.rest == "noted" and table.sum() > 0:
            self.note()
        for row, (height, width) in enumerate(shapes.tolist()):
            one = nn.functional.interpolate(self.table, size=(height, width), mode="bilinear")
            table[row, : height * width] = one.flatten(2)[0].T
            if self.rest in ("written", "noted"):
                table[row, height * width :] = one[0, :, 0, 0]
        match self.rest:
            case "zeroed where large":  # the same for many fills
                return torch.where(table.abs() > 1e3, 0.0, table)
            case "bounded":
                return table.clamp(-1, 1)
            case "sign":
                return torch.where(table > -1e30, 1.0, 2.0)
        return table

    def forward(self, x: Tensor, shapes: Tensor) -> Tensor:
        return x + self.resize(shapes, x.shape[1])


def resized(rest: str) -> tuple[ExportCall, Any]:
    torch.manual_seed(0)
    inputs = [
        (torch.randn(len(rows), 12, 3), torch.tensor(rows)) for rows in ([[2, 3], [3, 4]], [[5, 2], [2, 2], [1, 3]])
    ]
    return call_of(Resized(rest), inputs, ({0: Dim.AUTO}, {0: Dim.AUTO})), inputs


class Embedded(nn.Module):
    """An operator computes from token ids and weights; only the length of a read of them depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 3)

    def pool(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x[:, : int(lengths.max())].sum(1)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.pool(self.embed(ids), lengths)


def flagged(grid: Tensor) -> tuple[Tensor, bool]:
    height = int(grid[0, 1])
    return torch.arange(height), height > 5


class Flagged(nn.Module):
    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        order, high = flagged(grid)
        return x[order] * (2 if high else 3)


def sort_places(values: Tensor) -> Tensor:
    return values.argsort()


OPERATIONS: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "add": lambda made: made[-1] + made[0],
    "view": lambda made: made[-1].view(-1),
    "shape": lambda made: torch.ones_like(made[-1]) * made[0].shape[0],
    "gather": lambda made: made[-1][made[0].long().abs() % made[-1].shape[0]],
    "write": lambda made: made[-1].clone().copy_(made[0]),
    "into": lambda made: made[0].mul_(1).add_(made[-1].to(made[0].dtype)),
    "swap": lambda made: made[-2] * 2,
    "order": lambda made: sort_places(made[-1]),
    "mask": lambda made: torch.where(made[-1] > 0, made[0], made[-2].to(made[0].dtype)),
}


def identity(value: Tensor) -> Tensor:
    return value * 1


class Drawn(nn.Module):
    def __init__(self, steps: list[str], start: bool) -> None:
        super().__init__()
        self.steps, self.start = steps, start
        self.table = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        made = [x * 1, ids * 1, self.table * 1, ids + 1] if self.start else [ids * 1, ids + 1, x * 1, ids - 1]
        for step in self.steps:
            made.append(identity(OPERATIONS[step](made)))
            made.insert(0, made.pop(1))
        return made[-1].sum() + x.sum()


class Applied(nn.Module):
    """Torch calls a function of the user's for each element."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return x * identity(ids.clone().apply_(increase))


class AppliedByName(nn.Module):
    """Torch is given a function of the user's by a keyword."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        apart = nn.functional.triplet_margin_with_distance_loss
        return x * identity(apart(ids[None], ids[None] + 1, ids[None] - 1, distance_function=far))


def increase(number: int) -> int:
    return number + 1


def far(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).abs().sum(-1)


class Deep(nn.Module):
    """Layer after layer in functions of the user's; `MADE` knows whether the memory of what they gave still lives."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        for _ in range(9):
            x = self.step(x, identity(ids))
        return x

    def step(self, x: Tensor, ids: Tensor) -> Tensor:
        kept = x * 2 + ids
        MADE.append(StorageWeakRef(kept.untyped_storage()))
        return kept


MADE: list[StorageWeakRef] = []


def doubled(values: Tensor) -> list[int]:
    return [int(value) * 2 for value in values.tolist()]


class OfLists(nn.Module):
    """`use` does something with two lists that are hoisted, `given` and `more`."""

    def __init__(self, use: Callable[[Tensor, Any, Any], Tensor]) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: Tensor, given: Tensor, more: Tensor) -> Tensor:
        return self.use(x, doubled(given), doubled(more))


def of_lists(use: Any, *, shapes: Any = (None, None, None)) -> tuple[ExportCall, list[Any]]:
    inputs = [(torch.randn(12, 4), torch.tensor(a), torch.tensor(b)) for a, b in (([2, 3], [4, 1]), ([1, 5], [2, 2]))]
    return ExportCall(module=OfLists(use).eval(), args=inputs[0], dynamic_shapes=shapes), inputs


def written_copies(x: Tensor, given: Any, more: Any) -> Tensor:
    one, other = torch.tensor(given), torch.as_tensor(given)
    one.add_(100)
    return x + other.sum() + x.new_tensor(given).sum()


def other_copies(x: Tensor, given: Any, more: Any) -> Tensor:
    """`torch.tensor` of a tensor that is not hoisted is a copy of it."""
    made = x * 1
    copy = torch.tensor(made)
    copy.add_(5)
    return made + torch.tensor(given, dtype=torch.float32).mean()


def by_class(x: Tensor, given: Any, more: Any) -> Tensor:
    return x * 2 + torch.tensor(given).sum() if isinstance(given, list) else x * 3


def by_pattern(x: Tensor, given: Any, more: Any) -> Tensor:
    match given:
        case [first, second]:
            return x * first + second
        case _:
            return x


def taken_apart(x: Tensor, given: Any, more: Any) -> Tensor:
    return x * given[0] + given[-1] * len(given) + sum(one for one in more)


def as_index(x: Tensor, given: Any, more: Any) -> Tensor:
    return x[given] * 2 + x[more, 1:2]


def places_of(lengths: Tensor, width: int) -> Tensor:
    return torch.cat([torch.arange(length) * width for length in lengths.tolist()])


class BySize(nn.Module):
    """A size of another input is an argument."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x + places_of(lengths, x.shape[1])[:, None]


class ByAttribute(nn.Module):
    """Forward leaves a size on the module, which the function reads."""

    width = 0

    def places(self, lengths: Tensor) -> Tensor:
        return torch.arange(int(lengths.sum())) * self.width

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        self.width = x.shape[1]
        return x + self.places(lengths)[:, None]


class ByContents(ByAttribute):
    """As before, in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.known = {"width": 0}

    def places(self, lengths: Tensor) -> Tensor:
        return torch.arange(int(lengths.sum())) * self.known["width"]

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        self.known["width"] = x.shape[1]
        return x + self.places(lengths)[:, None]


class Counting(nn.Module):
    calls = 0

    def places(self, lengths: Tensor) -> Tensor:
        self.calls += 1
        return torch.arange(int(lengths.sum())) * self.calls

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        self.calls = 0
        return x + self.places(lengths)[:, None] + self.places(lengths)[:, None]


class Growing(nn.Module):
    """What it reads is another buffer at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.past = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def places(self, lengths: Tensor) -> Tensor:
        return places_of(lengths, 1) + self.past

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y = x + self.places(lengths)[:, None]
        self.past.add_(1)
        return y


class Echo(nn.Module):
    """The function gives its argument, into which forward writes."""

    def same(self, lengths: Tensor) -> Tensor:
        return lengths if lengths.sum().item() > 100 else lengths[:]

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        lengths = lengths * 1
        echo = self.same(lengths)
        lengths.add_(10)
        return x + echo.sum()


def of_width(width: int, *lengths: int) -> tuple[Tensor, Tensor]:
    return torch.randn(sum(lengths), width), torch.tensor(lengths)


class BySetting(nn.Module):
    """Arguments that are written as a constant or an attribute of the module."""

    width = 3

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x + places_of(lengths, self.width)[:, None] + places_of(lengths, width=2)[:, None]


class Noting(Tower):
    """Notes the grids of its forwards, outside of what is restored."""

    def __init__(self, note: Callable[[Any], None]) -> None:
        super().__init__()
        self.note: Any = note

    def forward(self, patches: Tensor, shape: Tensor) -> Tensor:
        self.note(shape.tolist())
        return self.proj(patches)[order_of(shape * 1)]


class Noted:
    def note(self, number: int) -> None:
        self.last = number


class ShortOnly(nn.Module):
    """Few positions are added up on a line that many do not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(2, 2)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        parts, extra = [], 0
        for one in positions.tolist():
            if positions.shape[0] < 4:
                extra += 7
            parts.append(one + (extra if positions.shape[0] < 4 else 0))
        return self.proj(x) * torch.tensor(parts)[:, None]


class NotedWhereShort(ShortOnly):
    """A name holds an object that the loop changes; for more positions it holds None."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        noted = Noted() if positions.shape[0] < 4 else None
        total = 0
        for one in positions.tolist():
            if noted is not None:
                noted.note(one)
            total += one
        return self.proj(x) * torch.arange(total + 1)[positions][:, None]

"""What follows from whole numbers alone is found, becomes an input, and is computed again for other inputs."""

from __future__ import annotations

import copy
import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim
from torch.multiprocessing.reductions import StorageWeakRef

from exportdoctor.export.shims_module import ModuleHeader, shims_module
from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.rules.call_stand_in import stand_in
from exportdoctor.shims.rules.clean_call_search import find_hoisted_calls
from exportdoctor.shims.rules.clean_calls import record_calls
from exportdoctor.shims.rules.hoisted_results import HoistedCall
from shim_cases import CASES, EncoderOfMethods, grids


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


def grids_of(*rows: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    return grids(*rows)


def halves(*rows: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    return [(patches, grid // torch.tensor([1, 2, 2])) for patches, grid in grids(*rows)]


def several(*counts: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(9, 4), torch.tensor([[1, 2 + n, 3] for n in range(count)])) for count in counts]


def pairs(*rows: tuple[int, int]) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(patches, grid, grid[:, [0, 2, 1]].contiguous()) for patches, grid in grids(*rows)]


_FREE = {0: Dim.DYNAMIC}


def call_of(module: nn.Module, inputs: list[Any], shapes: Any) -> ExportCall:
    more: tuple[Any, ...] = tuple((row, {}) for row in inputs[1:-1])
    return ExportCall(module=module.eval(), args=inputs[0], dynamic_shapes=shapes, more_inputs=more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "inputs", "shapes", "shim"),
    [
        (EncoderOfMethods, grids((4, 4), (4, 6), (6, 2)), (_FREE, None), "hoist"),
        (Tower, grids((4, 4), (4, 6), (6, 2)), (_FREE, None), "hoist:order_of"),
        (Wrapped, halves((4, 4), (4, 6), (6, 2)), (_FREE, None), "hoist"),
        (Wrapped, halves((4, 4), (4, 6), (6, 2)), (_FREE, None), "hoist:order_of"),
        (Twice, pairs((4, 6), (4, 4), (6, 2)), (_FREE, None, None), "hoist"),
        (Sized, several(2, 3, 5), (None, _FREE), "hoist"),
        (Hiding, grids((4, 4), (4, 6), (6, 2)), (_FREE, None), "hoist"),
        (make_local, grids((4, 4), (4, 6), (6, 2)), (_FREE, None), "hoist"),
        (Padded, lengths((3, 5), (2, 7), (9, 9)), (None, None), "hoist-numbers"),
        (Cropped, lengths((3, 4), (2, 3), (4, 3)), (None, None), "hoist-numbers"),
        (Typed, lengths((3, 4), (2, 3), (4, 3)), (None, None), "hoist-numbers"),
        (Reshaped, grids((4, 4), (4, 6), (6, 2)), (_FREE, None), "hoist-numbers"),
        (Split, pair_of_images((2, 3, 4, 2), (3, 3, 2, 2), (5, 1, 2, 6)), (_FREE, None), "hoist-numbers"),
        (Listed, grids((4, 4), (4, 6), (6, 2)), (_FREE, None), "hoist-numbers"),
    ],
)
def test_the_program_takes_what_is_hoisted_and_answers_as_eager(
    make: Callable[[], nn.Module], inputs: list[Any], shapes: Any, shim: str
) -> None:
    """The last of the inputs is one that the export has not seen."""
    torch.manual_seed(0)
    call = call_of(make(), inputs, shapes)
    with pytest.raises(Exception):  # noqa: B017  (what torch says depends on the model)
        export_program(call)
    code = order_of.__code__
    with apply_shims([find(shim)], call) as changed:
        program = export_program(changed).module()
    assert order_of.__code__ is code
    for row in inputs:
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*row))


@pytest.mark.parametrize(("make", "shim"), [(Padded, "hoist-numbers"), (Cropped, "hoist-numbers"), (Sized, "hoist")])
def test_what_is_passed_in_may_have_other_sizes_where_the_call_says_nothing_of_sizes(
    make: Callable[[], nn.Module], shim: str
) -> None:
    inputs = lengths((3, 4), (2, 3), (5, 3))
    if make is Sized:
        inputs = several(2, 2)
        inputs[1][1].add_(1)
    call = ExportCall(module=make().eval(), args=inputs[0])
    with apply_shims([find(shim)], call) as changed:
        program = export_program(changed).module()
    for row in inputs:
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*row))


def test_it_does_what_the_named_shims_do() -> None:
    for name in ("precompute-grid", "precompute-position-ids"):
        case = CASES[name]
        call = case.call()
        with apply_shims([find("hoist")], call) as changed:
            program = export_program(changed).module()
        for args, kwargs in case.others:
            given_args, given = changed.convert((args, kwargs))
            torch.testing.assert_close(program(*given_args, **given), call.module(*args, **kwargs))


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


@pytest.mark.parametrize("make", [Mixed, Looping])
def test_a_number_that_is_no_size_is_not_passed_in_as_one(make: Callable[[], nn.Module]) -> None:
    inputs = [(torch.randn(9, 4), torch.tensor([count])) for count in (2, 3, 5)]
    call = call_of(make(), inputs, (None, None))
    with pytest.raises(Exception, match=r"no number is read|ata-dependent|Constraints violated|specialized"):  # noqa: SIM117
        with apply_shims([find("hoist-numbers")], call) as changed:
            export_program(changed)


def by_values(x: Tensor, grid: Tensor) -> Tensor:
    return torch.arange(grid.tolist()[0][1]) + int(x.sum() > 0)


_READS: dict[str, Callable[[Any], Any]] = {
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


_WAYS = {"place": by_place, "fill": by_fill, "out": by_out}


class Dirty(nn.Module):
    def __init__(self, which: str) -> None:
        super().__init__()
        self.which, self.table = which, nn.Parameter(torch.randn(9))

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        if self.which == "values":
            return x.sum() + by_values(x, grid)
        if self.which in _WAYS:
            return x.sum() + _WAYS[self.which](x, grid)
        if self.which == "holder":
            return x.sum() + by_holder(x, grid)
        if self.which in _READS:
            return x.sum() + by_reading(_READS[self.which], x, grid)
        if self.which == "parameter":
            return x.sum() + by_parameter(self, grid)
        if self.which == "chance":
            return x.sum() + by_chance(grid)
        place = torch.zeros(3, dtype=torch.int64)
        return x.sum() + by_writing(grid, place) + place


@pytest.mark.parametrize("which", ["values", "chance", "writing", "holder", *_WAYS, *_READS])
def test_what_depends_on_more_than_whole_numbers_is_not_hoisted(which: str) -> None:
    inputs = [(torch.randn(3), torch.tensor([[1, 4, 4]])), (torch.randn(5), torch.tensor([[1, 6, 4]])), ()]
    with pytest.raises(NotApplicable), apply_shims([find("hoist")], call_of(Dirty(which), inputs, (_FREE, None))):
        pass


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


def test_a_call_after_others_that_values_decide_on_is_hoisted() -> None:
    x, grid = torch.randn(5), torch.tensor([[1, 4, 4]])
    call = ExportCall(module=Routed(), args=(x, grid), more_inputs=(((torch.randn(5), grid + 2), {}),))
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
        torch.testing.assert_close(program(*changed.args, **changed.kwargs), call.module(x, grid))


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


@pytest.mark.parametrize("rest", ["written", "noted"])
def test_what_follows_from_weights_and_whole_numbers_is_hoisted(rest: str) -> None:
    call, inputs = resized(rest)
    other = torch.randn(3, 12, 3), torch.tensor([[1, 1], [2, 6], [4, 3]])
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    for row in (*inputs, other):
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*row), rtol=0, atol=0)


@pytest.mark.parametrize("rest", ["left", "zeroed where large", "bounded", "sign"])
def test_what_follows_from_memory_without_values_is_not_hoisted(rest: str) -> None:
    with pytest.raises(NotApplicable):
        find_hoisted_calls(resized(rest)[0], "")


class Embedded(nn.Module):
    """An operator computes from token ids and weights; only the length of a read of them depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 3)

    def pool(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x[:, : int(lengths.max())].sum(1)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.pool(self.embed(ids), lengths)


def test_what_the_model_computes_of_token_ids_by_its_weights_is_not_hoisted() -> None:
    inputs = [(torch.randint(0, 9, (2, 5)), torch.tensor(lengths)) for lengths in ([3, 2], [4, 1])]
    with pytest.raises(NotApplicable):
        find_hoisted_calls(call_of(Embedded(), inputs, ({0: Dim.AUTO}, {0: Dim.AUTO})), "")


def test_weights_are_hoisted_only_where_nothing_follows_from_whole_numbers_alone() -> None:
    inputs = [(torch.randn(3), torch.tensor([[1, height, 4]])) for height in (4, 6)]
    (only,) = find_hoisted_calls(call_of(Dirty("parameter"), inputs, (_FREE, None)), "")
    assert only.title == "by_parameter"

    class Both(Dirty):
        def forward(self, x: Tensor, grid: Tensor) -> Tensor:
            return super().forward(x, grid) + order_of(grid).sum()

    (only,) = find_hoisted_calls(call_of(Both("parameter"), inputs, (_FREE, None)), "")
    assert only.title == "order_of"


def flagged(grid: Tensor) -> tuple[Tensor, bool]:
    height = int(grid[0, 1])
    return torch.arange(height), height > 5


class Flagged(nn.Module):
    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        order, high = flagged(grid)
        return x[order] * (2 if high else 3)


def test_a_truth_value_is_asserted_by_the_program() -> None:
    inputs = [(torch.randn(9, 2), torch.tensor([[1, high, 4]])) for high in (2, 4, 8)]
    call = call_of(Flagged(), inputs, (None, None))
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    args, kwargs = changed.convert((inputs[0], {}))
    torch.testing.assert_close(program(*args, **kwargs), call.module(*inputs[0]))
    args, kwargs = changed.convert((inputs[-1], {}))
    with pytest.raises(Exception, match=r"is not False|Guard|shape|Expected"):
        program(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "inputs", "shim"),
    [
        (Tower, grids((4, 4), (4, 6), (6, 2)), "hoist"),
        (Sized, several(2, 3, 5), "hoist"),
        (InLoop, grids((4, 4), (4, 6), (6, 2)), "hoist"),
        (Reshaped, grids((4, 4), (4, 6), (6, 2)), "hoist-numbers"),
    ],
)
def test_the_conversion_function_stands_in_the_file_of_the_shims(
    make: Callable[[], nn.Module], inputs: list[Any], shim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees one set of inputs, and makes of them what the program takes."""
    text = shims_module([find(shim)], ModuleHeader(title="model", part="default", made_by="a test", versions={}))
    (tmp_path / "shims_for_model.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shims_for_model", raising=False)
    cure: Any = importlib.import_module("shims_for_model")
    assert cure.is_user_file(str(tmp_path / "model.py")), "what lies beside the file is the user's code"
    module = make().eval()
    shapes = (None, _FREE) if make is Sized else (_FREE, None)
    more: list[Any] = [(row, {}) for row in inputs[1:-1]]
    program = cure.export(module, inputs[0], dynamic_shapes=shapes, more_inputs=more).module()
    for row in inputs:
        args, kwargs = cure.convert(module, row)
        torch.testing.assert_close(program(*args, **kwargs), module(*row))
    with pytest.raises(cure.NotApplicable):
        cure.convert(nn.Linear(2, 2), (torch.ones(1, 2),))


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


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=5), st.booleans())
def test_a_result_that_is_called_clean_is_the_same_whatever_the_floats_are(steps: list[str], start: bool) -> None:
    """The law behind the shim: redrawn inputs and parameters change no clean result."""
    torch.manual_seed(len(steps))
    module, ids = Drawn(steps, start), torch.tensor([3, 0, -2, 5])
    rows = []
    for seed in range(3):
        with torch.no_grad():
            module.table.copy_(torch.randn(4, generator=torch.Generator().manual_seed(seed)))
        x = torch.randn(4, generator=torch.Generator().manual_seed(9 + seed))
        records, _ = record_calls(module, ((x, ids), {}))
        rows.append([one for one in records if one.code.co_name == "identity"])
    for calls in zip(*rows, strict=True):
        if calls[0].clean:
            assert all(torch.equal(calls[0].result, other.result) for other in calls)


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


@pytest.mark.parametrize(
    ("module", "called"), [(Applied(), ["increase", "increase"]), (AppliedByName(), ["far", "far"])], ids=repr
)
def test_a_function_that_torch_is_given_and_calls_is_recorded(module: nn.Module, called: list[str]) -> None:
    """What runs inside of a torch function is not watched otherwise."""
    records, _ = record_calls(module, ((torch.randn(2), torch.tensor([3, 0])), {}))
    mine = [one.code.co_name for one in records if one.code.co_filename == __file__]  # hypothesis hears of collections
    assert mine == ["forward", *called, "identity"]


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


def test_what_a_model_computes_is_not_held_in_memory() -> None:
    MADE.clear()
    records, _ = record_calls(Deep(), ((torch.randn(2), torch.tensor([3, 0])), {}))
    assert [one.expired() for one in MADE] == [True] * 9
    clean = [one for one in records if one.clean and one.code.co_filename == __file__]
    assert len(clean) == 9  # of `identity`, whose results are needed


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("use", [written_copies, other_copies, by_class, by_pattern, taken_apart, as_index])
def test_a_hoisted_list_means_the_same_to_the_program(use: Any) -> None:
    call, inputs = of_lists(use)
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    for row in inputs:
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*row))


@pytest.mark.parametrize(
    "use",
    [
        lambda x, given, more: x + torch.tensor(given + more).float().mean(),
        lambda x, given, more: x + torch.tensor([1, 2] + more).float().mean(),  # noqa: RUF005
        lambda x, given, more: x + torch.tensor(given * 2).float().mean(),
        lambda x, given, more: x + torch.tensor(given[1:]).float().mean(),
        lambda x, given, more: x + torch.tensor([given, more]).float().mean(),
        lambda x, given, more: x * 2 if given == more else x,
        lambda x, given, more: x * 2 if 4 in given else x,
        lambda x, given, more: x * 2 if given.append(3) is None else x,
    ],
)
def test_what_means_something_else_of_a_tensor_than_of_a_list_is_refused(use: Any) -> None:
    call, _ = of_lists(use)
    with pytest.raises(NotApplicable, match="a hoisted list"), apply_shims([find("hoist")], call) as changed:
        export_program(changed)


def test_the_sizes_of_a_split_are_a_hoisted_list() -> None:
    """How many there are is fixed, as in eager's code that follows."""

    def split(x: Tensor, given: Any, more: Any) -> Tensor:
        first, second = torch.split(x[:, :1].expand(12, 10).T, given)
        return first.sum() * 2 + second.sum()

    call = ExportCall(module=OfLists(split).eval(), args=(torch.randn(12, 4), torch.tensor([2, 3]), torch.tensor([1])))
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    for row in ([2, 3], [1, 4]):
        given = (call.args[0], torch.tensor(row), call.args[2])
        args, kwargs = changed.convert((given, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*given))


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


@pytest.mark.slow
@pytest.mark.parametrize("make", [BySize, ByAttribute, ByContents, Counting, Growing])
def test_what_forward_did_before_the_call_is_part_of_the_conversion(make: Callable[[], nn.Module]) -> None:
    """All known inputs have one width, and the others another; each program is called three times in a row."""
    module = make().eval()
    eager = copy.deepcopy(module)  # the program writes into the buffers of the module that it was made of
    free = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    more: Any = ((of_width(4, 2, 4, 1), {}),)
    call = ExportCall(module=module, args=of_width(4, 2, 3), dynamic_shapes=(free, _FREE), more_inputs=more)
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    for row in (of_width(4, 2, 3), of_width(8, 2, 5), of_width(8, 1, 4, 1)):
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), eager(*row))


def test_a_result_that_is_an_older_tensor_is_not_hoisted() -> None:
    call = ExportCall(module=Echo(), args=of_width(4, 2, 3), dynamic_shapes=(_FREE, _FREE))
    with pytest.raises(NotApplicable), apply_shims([find("hoist")], call):
        pass


class BySetting(nn.Module):
    """Arguments that are written as a constant or an attribute of the module."""

    width = 3

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x + places_of(lengths, self.width)[:, None] + places_of(lengths, width=2)[:, None]


@pytest.mark.parametrize(("make", "alone"), [(BySetting, True), (BySize, False), (ByAttribute, False)])
def test_a_call_is_made_by_itself_only_if_forward_has_no_part_in_it(make: Callable[[], nn.Module], alone: bool) -> None:
    call = ExportCall(module=make(), args=of_width(4, 2, 3))
    assert {one.arguments is not None for one in find_hoisted_calls(call, "")} == {alone}


class Noting(Tower):
    """Notes the grids of its forwards, outside of what is restored."""

    def __init__(self, note: Callable[[Any], None]) -> None:
        super().__init__()
        self.note: Any = note

    def forward(self, patches: Tensor, shape: Tensor) -> Tensor:
        self.note(shape.tolist())
        return self.proj(patches)[order_of(shape * 1)]


def test_known_inputs_are_converted_once_and_again_after_they_were_changed() -> None:
    seen: list[list[int]] = []
    first, second = grids((4, 4), (2, 6))
    call = ExportCall(
        module=Noting(seen.append).eval(), args=first, more_inputs=((second, {}),), dynamic_shapes=(_FREE, None)
    )
    with apply_shims([find("hoist")], call) as changed:
        assert seen == [first[1].tolist(), second[1].tolist()] * 2  # once recorded, once converted
        before = changed.convert((first, {}))[1]
        first[1].copy_(torch.tensor([[1, 8, 2]]))
        after = changed.convert((first, {}))[1]
    name = next(name for name in after if name.startswith("order_of"))
    assert torch.equal(changed.kwargs[name], before[name])
    assert torch.equal(after[name], order_of(first[1]))
    assert not torch.equal(after[name], before[name])


def test_a_stand_in_takes_what_the_function_takes_now() -> None:
    def first(grid: Any) -> str:
        return "one"

    def other(grid: Any, more: Any) -> str:
        return "other"

    one: Any = first

    call = HoistedCall(
        title="one", number=0, layout=None, leaves=(), example=(), function=one, arguments=None, recorded=()
    )

    def answered(*args: Any) -> tuple[Any, ...]:
        with stand_in([call], lambda _, compute: (compute(), "answered")):
            return one(*args)

    assert [answered(0), answered(0)] == [("one", "answered")] * 2
    one.__code__ = other.__code__
    assert [answered(0, 1), answered(0, 1)] == [("other", "answered")] * 2
    with stand_in([call], lambda _, compute: (compute(), "outer")) as start:
        assert answered(0, 1) == (("other", "outer"), "answered")
        start()
        assert one(0, 1) == ("other", "outer")


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


@pytest.mark.parametrize("build", [ShortOnly, NotedWhereShort])
def test_what_names_hold_is_what_the_example_shows(build: type[nn.Module]) -> None:
    """Story: noted in forwards of other inputs alone, no statement could be moved, and a cure that fixes sizes won."""

    def inputs(*positions: int) -> tuple[Tensor, Tensor]:
        return torch.ones(len(positions), 2), torch.tensor(positions)

    module, free = build(), {0: Dim.DYNAMIC}
    more: Any = ((inputs(9, 2, 4, 4, 1), {}),)
    call = ExportCall(module=module, args=inputs(2, 5, 1), dynamic_shapes=(free, free), more_inputs=more)
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    for other in (inputs(3, 4), inputs(4, 2, 3, 1, 7)):
        args, kwargs = changed.convert((other, {}))
        assert torch.equal(program(*args, **kwargs), module(*other))

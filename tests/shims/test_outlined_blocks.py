"""A loop over values in the middle of a function is hoisted, with what it needs before it and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.rules.hoisting.clean_call_search import find_hoisted_calls
from shim_cases import grids

_PATCHES = {0: Dim.DYNAMIC}


class Inline(nn.Module):
    """Rows are chosen by a loop between what is computed of the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 2)

    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        x = self.proj(patches)
        rows, start = [], 0
        for _, height, width in grid.tolist():
            for column in range(width):
                rows.append(start + torch.arange(height) * width + column)
            start += height * width
        order = torch.cat(rows).to(x.device)
        return x[order].relu()


class InBranch(Inline):
    """The loop stands in other statements; a name of it is used again by another loop, which binds it first."""

    def forward(self, patches: Tensor, grid: Tensor | None = None) -> Tensor:
        x = self.proj(patches)
        if grid is not None:
            with torch.no_grad():
                lengths = grid.prod(-1)
                parts = []
                for count in lengths.tolist():
                    if count < 1:
                        raise ValueError("an empty image")
                    parts.append(torch.full((count,), count))
                weights = torch.cat(parts)
            x = x * weights[:, None]
        for count in (1, 2):
            x = x * count
        return x


class Comprehended(Inline):
    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        x = self.proj(patches)
        parts = [torch.arange(column, column + int(row[1])) for row in grid for column in range(int(row[2]))]
        return x + torch.cat(parts)[:, None]


class Tables(Inline):
    """Lists in lists, made and filled here, become tensors of the dtype of what the model computes."""

    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        x = self.proj(patches)
        lists: list[list[float]] = [[] for _ in range(2)]
        for _, height, width in grid.tolist():
            steps = torch.linspace(0, 1, height)
            lists[0].extend(steps.repeat_interleave(width).tolist())
            lists[1].extend(torch.linspace(0, 1, width).repeat(height).tolist())
        weights = torch.tensor(lists, dtype=x.dtype, device=x.device)
        return x * weights.T


class Segments(Inline):
    """A mask is filled by slices between the values of a tensor."""

    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        x = self.proj(patches)
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), (grid[:, 1] * grid[:, 2]).cumsum(0)])
        mask = torch.full((len(x), len(x)), float("-inf"), dtype=x.dtype)
        for place in range(1, len(ends)):
            mask[ends[place - 1] : ends[place], ends[place - 1] : ends[place]] = 0
        return torch.softmax(x @ x.T + mask, -1) @ x


class Padded(Inline):
    """A number is read outside of the loop, too."""

    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        x = self.proj(patches)
        lengths = torch.tensor([2] * int(grid[:, 1].sum()), dtype=torch.int64)
        lengths[0] = grid[0, 0]  # into what is an input of the program
        mask = torch.zeros(len(lengths), 2)
        for place, length in enumerate(lengths.tolist()):
            mask[place, : min(length, place)] = 1
        return x + mask.sum(0)


class OnOneLine(Inline):
    """What the loop writes into is made on a line with another statement."""

    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        x = self.proj(patches)
        order = torch.zeros(len(x), dtype=torch.int64); start = 0  # noqa: E702  # fmt: skip
        for _, height, width in grid.tolist():
            order[start : start + height * width] = height if height > width else width
            start += height * width
        order += 1
        return x * order[:, None]


class EndsLater(Inline):
    """What the loop in a block makes is joined after that block."""

    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        x = self.proj(patches)
        parts = []
        with torch.no_grad():
            for _, height, width in grid.tolist():
                if height > 50:
                    raise ValueError("too high")
                parts.append(torch.arange(height).repeat_interleave(width))
        return x * torch.cat(parts)[:, None]


class InTwoPlaces(Inline):
    """Two loops of one function, called for each of two layers."""

    def mix(self, x: Tensor, grid: Tensor) -> Tensor:
        parts = []
        for _, height, width in grid.tolist():
            parts.append(torch.arange(height).repeat_interleave(width) if width > 1 else torch.arange(height))
        x = x + torch.cat(parts)[:, None]
        places = torch.zeros(len(x), dtype=torch.int64)
        start = 0
        for _, height, width in grid.tolist():
            for row in range(height):
                places[start : start + width] = row
                start += width
        return x * places[:, None]

    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        return self.mix(self.mix(self.proj(patches), grid), grid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "shim"),
    [
        (Inline, "hoist"),
        (Inline, "hoist:Inline.forward"),
        (InBranch, "hoist"),
        (Comprehended, "hoist"),
        (Tables, "hoist"),
        (Segments, "hoist"),
        (Padded, "hoist"),
        (OnOneLine, "hoist"),
        (EndsLater, "hoist"),
        (InTwoPlaces, "hoist"),
        (InTwoPlaces, "hoist:InTwoPlaces.mix"),
    ],
)
def test_the_program_takes_what_the_loop_makes_and_answers_as_eager(make: Callable[[], nn.Module], shim: str) -> None:
    """The last of the inputs is one that the export has not seen."""
    torch.manual_seed(0)
    inputs = grids((4, 4), (4, 6), (6, 2), (2, 8))
    module = make().eval()
    code = type(module).forward.__code__
    call = ExportCall(
        module=module,
        args=inputs[0],
        dynamic_shapes=(_PATCHES, None),
        more_inputs=tuple((row, {}) for row in inputs[1:-1]),
    )
    with pytest.raises(Exception):  # noqa: B017  (what torch says depends on the model)
        export_program(call)
    with apply_shims([find(shim)], call) as changed:
        program = export_program(changed).module()
    assert type(module).forward.__code__ is code
    assert not any("block" in name for name in type(module).forward.__globals__)
    for row in inputs:
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), module(*row), rtol=0, atol=0)


class Refused(Inline):
    """Loops that do more than to compute from whole numbers."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which, self.seen = which, [0]

    def keeps(self, x: Tensor, grid: Tensor) -> Tensor:
        parts = []
        for _, height, width in grid.tolist():
            self.seen.append(height)
            parts.append(torch.arange(height * width) + len(self.seen))
        return x + torch.cat(parts)[:, None]

    def keeps_by_another_name(self, x: Tensor, grid: Tensor) -> Tensor:
        parts, seen = [], self.seen
        for _, height, width in grid.tolist():
            seen.append(height)
            parts.append(torch.arange(height * width) + len(seen))
        return x + torch.cat(parts)[:, None]

    def adds(self, x: Tensor, grid: Tensor) -> Tensor:
        parts, seen = [], self.seen
        for _, height, width in grid.tolist():
            seen += [height]
            parts.append(torch.arange(height * width) + len(seen))
        return x + torch.cat(parts)[:, None]

    def keeps_and_rebinds(self, x: Tensor, grid: Tensor) -> Tensor:
        """The name holds a tensor in the end."""
        seen: Any = self.seen
        for _, height, width in grid.tolist():
            seen.append(height * width)
        seen = torch.tensor(seen[-1:])
        return x * seen

    def keeps_inside(self, x: Tensor, grid: Tensor) -> Tensor:
        parts, rows = [], [self.seen]
        for _, height, width in grid.tolist():
            rows[0].append(height)
            parts.append(torch.arange(height * width) + len(rows[0]))
        return x + torch.cat(parts)[:, None]

    def keeps_each(self, x: Tensor, grid: Tensor) -> Tensor:
        parts = []
        for _, height, width in grid.tolist():
            for one in (self.seen,):
                one.append(height)
            parts.append(torch.arange(height * width) + len(self.seen))
        return x + torch.cat(parts)[:, None]

    def counts(self, x: Tensor, grid: Tensor) -> Tensor:
        parts = []
        for _, height, width in grid.tolist():
            self.last = height
            parts.append(torch.arange(height * width))
        return x * self.last + torch.cat(parts)[:, None]

    def reads(self, x: Tensor, grid: Tensor) -> Tensor:
        parts = []
        for _, height, width in grid.tolist():
            parts.append(torch.arange(height * width) + int(x.sum() > 0))
        return x + torch.cat(parts)[:, None]

    def returns(self, x: Tensor, grid: Tensor) -> Tensor:
        parts = []
        for _, height, width in grid.tolist():
            if height > 100:
                return x
            parts.append(torch.arange(height * width))
        return x + torch.cat(parts)[:, None]

    def draws(self, x: Tensor, grid: Tensor) -> Tensor:
        parts = []
        for _, height, width in grid.tolist():
            parts.append(torch.randperm(height * width))
        return x + torch.cat(parts)[:, None]

    def writes(self, x: Tensor, grid: Tensor) -> Tensor:
        x, start = x.clone(), 0
        for _, height, width in grid.tolist():
            x[start : start + height * width] = height
            start += height * width
        return x

    def closes(self, x: Tensor, grid: Tensor) -> Tensor:
        parts: list[Tensor] = []

        def first() -> Tensor:
            return parts[0]

        for _, height, width in grid.tolist():
            parts.append(torch.arange(height * width))
        return x + torch.cat(parts)[:, None] + len(first())

    def hands_over(self, x: Tensor, grid: Tensor) -> Tensor:
        """What the loop makes is no tensor and no number."""
        parts = {}
        for place, (_, height, width) in enumerate(grid.tolist()):
            parts[place] = x[: height * width].sum()
        return x + sum(parts.values())

    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        found: Tensor = getattr(self, self.which)(self.proj(patches), grid)
        return found


@pytest.mark.parametrize(
    "which",
    [
        "keeps", "keeps_by_another_name", "adds", "keeps_and_rebinds", "keeps_inside", "keeps_each", "counts", "reads",
        "returns", "draws", "writes", "closes", "hands_over",
    ],
)  # fmt: skip
def test_a_loop_that_does_more_than_compute_from_whole_numbers_stays(which: str) -> None:
    inputs: Any = grids((4, 4), (4, 6))
    module = Refused(which).eval()
    with pytest.raises(NotApplicable):
        find_hoisted_calls(ExportCall(module=module, args=inputs[0], more_inputs=((inputs[1], {}),)), "")

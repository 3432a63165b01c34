"""Tensors that are given as sizes are read before the call, like those that Python reads."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find, order_shims
from exportdoctor.shims.cure_pattern import FailureView


class Folded(nn.Module):
    """Each image is folded into its height and width and shrunk: no number is read in Python."""

    def forward(self, patches: Tensor, grid: Any) -> Tensor:
        (time, height, width), merge = grid.unbind(), torch.tensor(2)
        image = patches.view(time, height, width, -1).permute(0, 3, 1, 2)
        small = nn.functional.interpolate(image, size=(height // merge, width // merge), mode="bilinear")
        rows = small.permute(0, 2, 3, 1).reshape(-1, 3)
        return rows if rows.shape[0] < 1000 else rows[:1000]


class Cut(nn.Module):
    def forward(self, patches: Tensor, grid: Any) -> Tensor:
        first = patches[: grid[1] * 2] * torch.ones(grid[2]).sum()
        return first * 2 if first.shape[0] > 3 else first


def rows(*sizes: tuple[int, int, int]) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [
        (torch.randn(time * height * width, 3), torch.tensor([time, height, width])) for time, height, width in sizes
    ]


def call_of(module: nn.Module, inputs: list[Any]) -> ExportCall:
    more: tuple[Any, ...] = tuple((row, {}) for row in inputs[1:-1])
    return ExportCall(module=module.eval(), args=inputs[0], dynamic_shapes=({0: Dim.DYNAMIC}, None), more_inputs=more)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("make", [Folded, Cut])
def test_a_tensor_that_is_given_as_a_size_is_read_before_the_call(make: Callable[[], nn.Module]) -> None:
    """The last of the inputs is one that the export has not seen."""
    inputs = rows((2, 4, 6), (3, 6, 4), (4, 4, 8))
    call = call_of(make(), inputs)
    with pytest.raises(Exception):  # noqa: B017  (what torch says depends on the model)
        export_program(call)
    with apply_shims([find("hoist-numbers")], call) as changed:
        program = export_program(changed).module()
    for row in inputs:
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*row))


class Counted(nn.Module):
    """A size that follows from floating numbers."""

    def forward(self, patches: Tensor, grid: Any) -> Tensor:
        return patches[: (patches > 0).sum()]


class Valued(nn.Module):
    """Whole numbers, none of which is a size."""

    def forward(self, patches: Tensor, grid: Any) -> Tensor:
        return patches.new_full((2, 2), grid[0]) + patches[grid[1]].sum() * torch.full((2, 2), grid[0])


@pytest.mark.parametrize("make", [Counted, Valued])
def test_other_tensors_stay_what_they_are(make: Callable[[], nn.Module]) -> None:
    call = call_of(make(), rows((2, 4, 6), (3, 6, 4), (4, 4, 8)))
    with pytest.raises(NotApplicable, match="no number is read"), apply_shims([find("hoist-numbers")], call):
        pass


def test_it_is_proposed_where_item_made_the_symbol_whatever_the_line_says() -> None:
    line = "modeling.py:fold: image = patches.view(1, height, width, -1)"
    seen = FailureView(
        kind=FailureKind.DATA_DEPENDENT_GUARD, born=(line,), operators=("aten._local_scalar_dense.default",)
    )
    assert any(cure.matches(seen) for cure in find("hoist-numbers").cures)
    other = FailureView(kind=FailureKind.DATA_DEPENDENT_GUARD, born=(line,), operators=("aten.nonzero.default",))
    assert not any(cure.matches(other) for cure in find("hoist-numbers").cures)


class Joined(nn.Module):
    """Its pieces are joined again: a shim that takes them away takes the read away, too."""

    def forward(self, patches: Tensor, grid: Any) -> Tensor:
        whole = torch.cat(torch.split(patches, (grid[1] * torch.tensor([1, 2])).tolist()))
        first = whole[: int(grid[0])]
        return first * 2 if first.shape[0] > 3 else first


def test_reads_that_another_shim_takes_away_are_not_passed_in() -> None:
    torch.manual_seed(0)
    inputs = [(torch.randn(3 * n, 3), torch.tensor([4, n])) for n in (4, 5, 6)]
    call = call_of(Joined(), inputs)
    shims = order_shims([find("hoist-numbers"), find("joined-split")])
    with apply_shims(shims, call) as changed:
        assert sum("__" in name for name in changed.kwargs) == 1
        program = export_program(changed).module()
        for row in inputs:
            args, kwargs = changed.convert((row, {}))
            torch.testing.assert_close(program(*args, **kwargs), call.module(*row))


def frame_of(grid: Any) -> Tensor:
    return torch.arange(int(grid[1]) * 3) % int(grid[0])


class Framed(nn.Module):
    def forward(self, patches: Tensor, grid: Any) -> Tensor:
        return patches + frame_of(grid)[:, None]


@pytest.mark.parametrize(("make", "shims"), [(Framed, ("hoist",)), (Joined, ("hoist-numbers", "joined-split"))])
def test_a_root_whose_forward_is_an_attribute_of_its_own_takes_more_inputs(
    make: Callable[[], nn.Module], shims: tuple[str, ...]
) -> None:
    """A part spells out keywords so."""
    torch.manual_seed(0)
    inputs = [(torch.randn(3 * n, 3), torch.tensor([4, n])) for n in (4, 5, 6)]
    call = call_of(make(), inputs)
    forward = type(call.module).forward
    spelled_out = MethodType(forward, call.module)
    call.module.forward = spelled_out  # type: ignore[method-assign]
    with apply_shims(order_shims([find(shim) for shim in shims]), call) as changed:
        program = export_program(changed).module()
    assert (type(call.module).forward, vars(call.module)["forward"]) == (forward, spelled_out)
    for row in inputs:
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*row))


class Offsets(nn.Module):
    """Reads one number for each value that is there."""

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        return torch.cat([x.narrow(0, offset, 2) for offset in torch.unique(offsets).tolist()])


@pytest.mark.parametrize(
    ("offsets", "raised"),
    [
        ([0, 3], ""),
        ([1, 3], ""),
        ([-3, 3], "gives -3 where it gave a size at the export"),
        ([2, 2], "gives results of another structure"),
    ],
)
def test_what_the_condition_leaves_out_is_refused_by_the_conversion(offsets: list[int], raised: str) -> None:
    x, module = torch.arange(6.0), Offsets()
    call = ExportCall(module=module, args=(x, torch.tensor([2, 4])))
    shim = find("hoist-numbers")
    assert "structure" in shim.precondition
    assert "negative" in shim.precondition
    with apply_shims([shim], call) as given:
        program = export_program(given).module()
        inputs = x, torch.tensor(offsets)
        if raised:
            with pytest.raises(ValueError, match=raised):
                given.convert((inputs, {}))
        else:
            args, kwargs = given.convert((inputs, {}))
            assert torch.equal(program(*args, **kwargs), module(*inputs))

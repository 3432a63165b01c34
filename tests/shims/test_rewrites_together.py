"""Shims that rewrite one function go on from each other's code, whatever each of them rewrites there."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find

ROWS = {0: Dim.DYNAMIC}


class Stepped(nn.Module):
    """A check, a branch and a loop over the rows in one function."""

    def forward(self, x: Tensor, low: Tensor) -> Tensor:
        if low.max() >= 10:
            raise ValueError("too large")
        y = x * 2 if x.sum() > low.max() else x - 1
        state = torch.zeros_like(y[0])
        states = []
        for step in range(y.shape[0]):
            state = torch.tanh(y[step] + state)
            states.append(state)
        return torch.stack(states)


class Joined(nn.Module):
    """A check, and pieces that are joined again."""

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        if x.max() > 100:
            raise ValueError("too large")
        x = x * 2 if x.sum() > 0 else x - 1
        pieces = torch.split(x, sizes.tolist())
        return torch.cat(pieces) + 1


class Filled(nn.Module):
    """A loop over values in the middle of a function, behind a check."""

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        if (counts < 0).any():
            raise ValueError("negative")
        y = x * 2
        parts = []
        for count in counts.tolist():
            parts.append(torch.full((count,), count))
        weights = torch.cat(parts)
        return y * weights[:, None]


def stepped(rows: int, sign: float) -> tuple[Tensor, ...]:
    return torch.randn(rows, 4).abs() * sign, torch.tensor([0, 3])


def pieces(rows: int, sign: float) -> tuple[Tensor, ...]:
    return torch.randn(rows, 4).abs() * sign, torch.tensor([1] * (rows - 3) + [2, 1])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "names", "draw", "shapes"),
    [
        (Stepped(), ("check-as-assertion", "branch-as-where", "loops-as-scan"), stepped, (ROWS, None)),
        (Joined(), ("check-as-assertion", "branch-as-where", "joined-split"), pieces, (ROWS, ROWS)),
        (Filled(), ("hoist", "check-as-assertion"), pieces, (ROWS, ROWS)),
    ],
)
def test_each_of_them_does_its_work(module: nn.Module, names: tuple[str, ...], draw: Any, shapes: Any) -> None:
    before = type(module).forward.__code__
    eager = FunctionType(before, globals())
    call = ExportCall(module=module, args=draw(5, 1.0), dynamic_shapes=shapes)
    with apply_shims([find(name) for name in names], call) as given:
        program = export_program(given).module()
        for rows, sign in ((5, 1.0), (4, -1.0), (9, 1.0), (7, -1.0)):
            args, kwargs = given.convert((others := draw(rows, sign), {}))
            answer = program(*args, **kwargs)
            assert torch.equal(answer, eager(module, *others))
    assert type(module).forward.__code__ is before


class Resetting(nn.Module):
    """A leaky state that is halved where it grows too large, as lists of rows and as rows of a tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state, rows, out = torch.zeros(3), [], torch.zeros_like(x)
        for row in x:
            state = state * 0.5 + row
            if state.abs().max() > 3:
                state = state / 2
            rows.append(state)
        total = torch.zeros(3)
        for place in range(x.shape[0]):
            total = total + x[place]
            total = total.tanh() if total.sum() > 1 else total * 2
            out[place] = total
        return torch.stack(rows), out


class Firing(nn.Module):
    """Two states, of which an arm binds both and the other one, in one branch inside another."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        charge, fired, rows = torch.zeros(3), torch.zeros(()), []
        for row in x:
            charge = charge + row
            if charge.sum() > 1:
                if charge.max() > 2:
                    charge, fired = torch.zeros_like(charge), fired + 2
                else:
                    charge, fired = charge - 1, fired + 1
            else:
                charge = charge * 0.9
            rows.append(charge * fired)
        return torch.stack(rows), fired


class Scaling(nn.Module):
    """A tensor of no dimension beside a number, in each step."""

    def forward(self, x: Tensor) -> Tensor:
        state, rows = torch.zeros(3), []
        for row in x:
            scale = row.abs().max() if row.abs().max() > 1 else 1.0
            state = state * 0.5 + row / scale
            rows.append(state)
        return torch.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("make", [Resetting, Firing, Scaling])
def test_a_loop_over_a_dynamic_dimension_may_branch_on_values(make: type[nn.Module]) -> None:
    """The scan took no step with a branch, and the branch no loop of unknown length."""
    module, shapes = make(), {"x": ROWS}
    call = ExportCall(module=module, args=(torch.randn(6, 3),), kwargs={}, dynamic_shapes=shapes)
    with apply_shims([find("branch-as-where"), find("loops-as-scan")], call) as given:
        program = export_program(given).module()
    for size in (3, 4, 9, 20):
        for scale in (0.1, 1.0, 5.0):
            x = torch.randn(size, 3) * scale
            torch.testing.assert_close(program(x), module(x))

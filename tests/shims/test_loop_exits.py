"""A loop that is left where a tensor's value says so goes on in the program without changing anything."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find


class Newton(nn.Module):
    """It ends where the steps are small, and tells how many there were."""

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        y, count = x.abs() + 1, 0
        for _ in range(6):
            new = 0.5 * (y + x.abs() / y)
            if (new - y).abs().max().item() < 0.1:
                break
            y, count = new, count + 1
        return y, count


class Confident(nn.Module):
    """It leaves the function after a layer, in training mode, with two results."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number > 0 and x.mean() > 0.1:
                sure = x.sigmoid()
                return sure, x + 1
        return x, x * 2


class Skipping(nn.Module):
    """It skips steps, in a loop inside a loop that is left."""

    def forward(self, x: Tensor) -> Tensor:
        total = x * 0
        for step in range(3):
            for shift in range(2):
                y = x.roll(shift, -1) * (step + 1)
                if y[:, 0].sum() < 0:
                    total = total - 1
                    continue
                total = total + y
            if total.max() > 4:
                total = total / 2
                break
            elif total.min() < -9:  # noqa: RET508
                break
        return total


class Halting(nn.Module):
    """It counts its steps, and weighs by their number."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total, steps, weight = x * 0, 0, 1.0
        for _ in range(4):
            total = torch.tanh(total + x * weight)
            steps += 1
            if total.abs().mean() > 0.5:
                weight *= 0.5
            if total.max() > 0.9:
                break
            weight -= 0.1
        return total / steps, torch.full((x.shape[0],), steps)


class TwoLoops(nn.Module):
    """Both have one index."""

    def forward(self, x: Tensor) -> Tensor:
        for step in range(3):
            x = x + step
            if x.sum() > 10:
                break
        for step in range(2):
            x = x * (step + 2)
            if x.sum() > 10:
                break
        return x


class OverNumbers(nn.Module):
    """The loops go over numbers that are written there, and the exit is in the other arm."""

    def forward(self, x: Tensor) -> Tensor:
        for times in (1, 2, 0.5):
            if x.sum() > times:
                x = x * times - 1
            else:
                continue
            x = x + 0.5
        for shift in [3, -1, 2]:
            if x.mean() < 5:
                x = x + shift
            else:
                x = x * 2
                break
        return x


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    drawn = [torch.randn(n, 4) * scale for n in (2, 3, 5) for scale in (0.1, 1, 3, 30)]
    return [*drawn, *(sign * one.abs() for one in drawn for sign in (-1, 1)), torch.zeros(3, 4)]


class ReadLater(nn.Module):
    """The index says where it was left."""

    def forward(self, x: Tensor) -> Tensor:
        for step in range(4):  # noqa: B007
            x = x * 2
            if x.sum() > 10:
                break
        return x + step


@pytest.mark.slow
@pytest.mark.parametrize("make", [Newton, Confident, Skipping, Halting, TwoLoops, OverNumbers, ReadLater])
def test_the_program_answers_as_eager_wherever_the_loop_is_left(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = make()
    untouched = copy.deepcopy(module)
    call = ExportCall(module=module, args=(torch.randn(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    with pytest.raises(Exception, match="ata-dependent"):
        export_program(call)
    with torch.no_grad(), apply_shims([find("branch-as-where")], call) as changed:
        program = export_program(changed).module()
        for x in inputs():
            torch.testing.assert_close(program(x), untouched(x))


class Consuming(nn.Module):
    """Who reads the iterator next sees how far the loop came."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = [1, 2, 3, 4]

    def forward(self, x: Tensor) -> Tensor:
        left = iter(self.steps)
        for step in left:
            x = x + step
            if x.sum() > 10:
                break
        return x + len(list(left))


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield (number := number + 1)


class Endless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for step in endless():
            x = x + step
            if x.sum() > 10:
                break
        return x


class Collecting(nn.Module):
    """How many it collects shows where it was left."""

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for _ in range(3):
            x = x + 1
            found.append(x)
            if x.sum() > 10:
                break
        return torch.stack(found)


class Otherwise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + 1
            if x.sum() > 10:
                break
        else:
            x = x - 7
        return x


class Counted(nn.Module):
    """The layers count their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Counting() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            if x.sum() > 10:
                break
        return x


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x + 1


class FromWithin(nn.Module):
    """The `else` of a loop inside goes on with the loop around it."""

    def forward(self, x: Tensor) -> Tensor:
        for step in range(3):
            if x.sum() > 10:
                break
            for _ in range(2):
                x = x * 1.5
            else:
                continue
            x = x + step
        return x


@pytest.mark.parametrize("make", [Consuming, Endless, Collecting, Otherwise, Counted, FromWithin])
def test_a_loop_whose_later_steps_somebody_would_see_is_left_alone(make: Callable[[], nn.Module]) -> None:
    call = ExportCall(module=make(), args=(torch.randn(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    with pytest.raises(NotApplicable), apply_shims([find("branch-as-where")], call):
        pytest.fail("it applies")


class RunningOut(nn.Module):
    """The steps behind the exit have nothing to read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = [1.0, 2.0]

    def forward(self, x: Tensor) -> Tensor:
        for step in range(4):
            if x.abs().sum() >= 0:
                break
            x = x * self.table[step]
        return x


@pytest.mark.slow
def test_a_loop_whose_steps_cannot_run_behind_the_exit_is_left_alone() -> None:
    call = ExportCall(module=RunningOut(), args=(torch.randn(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    refused = pytest.raises(NotApplicable, match="may refuse values")
    with torch.no_grad(), refused, apply_shims([find("branch-as-where")], call) as changed:
        export_program(changed)


class Growing(nn.Module):
    """Each step gives another size."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.cat((x, x))
            if x.sum() > 10:
                break
        return x


class Noting(nn.Module):
    """What follows the loop does more than compute."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + 1
            if x.sum() > 10:
                return x
        self.seen += 1
        return x * 2


class Adding(nn.Module):
    """A name that the loop binds is added to elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for _ in range(3):
            y = y * 2
            if y.sum() > 10:
                break
        y += 1
        return y


@pytest.mark.parametrize(
    ("make", "applies"),
    [
        pytest.param(Growing, True, id="Growing"),
        pytest.param(Noting, False, id="Noting"),
        pytest.param(Adding, False, id="Adding"),
    ],
)
def test_what_cannot_be_left_so_fails_at_its_condition(make: Callable[[], nn.Module], *, applies: bool) -> None:
    """Under the shim, too, where the code alone does not show that the loop cannot be left so."""
    call = ExportCall(module=make(), args=(torch.randn(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    with pytest.raises(Exception, match="ata-dependent") as plain:
        export_program(call)
    assert len(lines_of(plain.value)) == 1
    said = "ata-dependent" if applies else "no function branches on a tensor's value with arms that only compute"
    with pytest.raises(Exception, match=said) as found, apply_shims([find("branch-as-where")], call) as changed:
        export_program(changed)
    assert isinstance(found.value, NotApplicable) == (not applies)
    assert lines_of(found.value) == (lines_of(plain.value) if applies else [])


def lines_of(error: BaseException) -> list[int]:
    steps = traceback.extract_tb(error.__traceback__)
    return [one.lineno or 0 for one in steps if one.filename == __file__ and one.name == "forward"]

"""A branch on how much was found becomes a choice, as one on a value does; one on a size of an input stays a guard."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find

_ROWS = tuple(
    torch.tensor(rows).reshape(-1, 2)
    for rows in (
        [1.0, 2.0, -1.0, 3.0, 2.0, 5.0],
        [-1.0, 2.0, -3.0, 4.0],
        [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 5.0],
        [0.5, -1.0, -2.0, 1.0, float("nan"), 1.0],
        [-1.0, 2.0] * 7,
        [2.0, float("nan")] * 5,
    )
)
"""Of some of them nothing is found, of some all."""


class _Finding(nn.Module):
    def found(self, x: Tensor) -> Tensor:
        return x[x[:, 0] > 0]


class ByLength(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found, y = self.found(x), x.new_zeros(2)
        if len(found) > 0:
            y = found.mean(0)
        return y


class ByShape(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        return found.mean(0) if found.shape[0] else x.new_zeros(2)


class NoElements(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        if found.numel() == 0:
            return x.sum() * 0
        y = found.mean(0)
        if y.sum() > 2:
            y = y - 1
        return y.sum()


class ByNameOfSize(_Finding):
    """The number is read by an arm as well, which torch.cond does not take."""

    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        number, width = found.shape
        if number > 0:
            return found.sum(0) / number * width
        return x.new_zeros(2)


class OneOfThree(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        if found.shape[0] > 1:
            spread = found.std(0)
        elif found.shape[0] == 1:
            spread = found.sum(0)
        else:
            spread = x.new_ones(2)
        return spread


class WritesInto(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found, y = self.found(x), torch.zeros(3, 2)
        row = y[1]
        if found.size(0) > 0:
            y[1] = found.mean(0)
        return y + row


class Centres(nn.Module):
    """A step of k-means: a centre that nothing is near to stays."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.tensor([[1.0, 1.0], [-1.0, 1.0], [40.0, 40.0]]))

    def forward(self, x: Tensor) -> Tensor:
        near = (x[:, None] - self.centres).square().sum(2).argmin(1)
        new = self.centres.clone()
        for number in range(3):
            found = x[near == number]
            if len(found) > 0:
                new[number] = found.mean(0)
        return new


class AsNumber(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        return x.sum(0) / (found.shape[0] if found.shape[0] > 0 else 1)


class Share(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        if len(found) / x.shape[0] > 0.5 and len(found) != len(x):
            return found.sum(0)
        return x.mean(0)


class Largest(_Finding):
    """The kernel refuses a tensor without rows."""

    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        return found.max(0).values if found.shape[0] > 0 else x.new_zeros(2)


class LargestOfOneArm(_Finding):
    """The branch inside asks for a value, the one around it for a size."""

    def forward(self, x: Tensor) -> Tensor:
        found, y = self.found(x), x.new_zeros(2)
        if len(found) > 0:
            y = found.max(0).values if x.sum() > 0 else found.mean(0)
        return y


class DividesWhole(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        return x.sum(0) * (12 // found.shape[0]) if found.shape[0] > 0 else x.new_zeros(2)


def _call(make: Callable[[], nn.Module]) -> ExportCall:
    return ExportCall(module=make(), args=(_ROWS[0],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [ByLength, ByShape, NoElements, ByNameOfSize, OneOfThree, WritesInto, Centres, AsNumber, Share, Largest,
     LargestOfOneArm, DividesWhole],
)  # fmt: skip
def test_the_program_answers_as_eager_whatever_is_found(make: Callable[[], nn.Module]) -> None:
    call = _call(make)
    with pytest.raises(Exception, match=r"data-dependent"):
        export_program(call)
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for rows in _ROWS:
        torch.testing.assert_close(program(rows.clone()), call.module(rows.clone()), equal_nan=True)


def test_a_length_that_has_a_name_needs_the_shim_for_lengths() -> None:
    class Counted(_Finding):
        def forward(self, x: Tensor) -> Tensor:
            found = self.found(x)
            number = len(found)
            return found.mean(0) if number > 0 else x.new_zeros(2)

    call = _call(Counted)
    with apply_shims([find("branch-as-where"), find("len-as-size")], call) as given:
        program = export_program(given).module()
    for rows in _ROWS:
        torch.testing.assert_close(program(rows), call.module(rows), equal_nan=True)


def test_a_condition_on_sizes_of_the_input_stays_a_guard() -> None:
    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(0) if x.shape[0] > 2 else x.mean(0)

    with pytest.raises(NotApplicable, match="how much was found"), apply_shims([find("branch-as-where")], _call(Large)):
        pass


class Raises(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        if found.shape[0] == 0:
            raise ValueError("nothing")
        return found.mean(0)


class Appends(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found, rows = self.found(x), [x[0]]
        if found.numel() > 0:
            rows.append(found.mean(0))
        return torch.stack(rows)


class OfOtherSizes(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found, other = self.found(x), x[x[:, 1] > 1]
        return found if len(found) > 2 else other


class First(_Finding):
    """Torch asserts for the whole program that there is a first row."""

    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        return found[0] if found.shape[0] > 0 else x.new_zeros(2)


class PlaceOfLargest(_Finding):
    """Here, too, though torch.cond takes the arm."""

    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        return found[:, 0].argmax() if found.shape[0] > 0 else torch.tensor(0)


class EqualSizes(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found, other = self.found(x), x[x[:, 1] > 2]
        return (found + other).sum(0) if len(found) == len(other) else x.sum(0)


class WrittenLater(_Finding):
    def forward(self, x: Tensor) -> Tensor:
        found = self.found(x)
        kept = found if len(found) > 2 else found * 2
        return torch.relu_(kept).sum(0) + found.sum(0)


@pytest.mark.parametrize("make", [Raises, Appends, OfOtherSizes, First, PlaceOfLargest, EqualSizes, WrittenLater])
def test_what_cannot_be_chosen_between_does_not_export(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(Exception, match=r"data-dependent|only compute|may refuse|asserts|written into"):  # noqa: SIM117
        with apply_shims([find("branch-as-where")], _call(make)) as given:
            export_program(given)


def test_len_of_a_list_beside_that_of_a_tensor() -> None:
    class Lists(_Finding):
        def forward(self, x: Tensor) -> Tensor:
            found = self.found(x)
            parts = [found, x]
            return found.sum(0) if len(parts) > 1 and len(found) > 1 else x.mean(0)

    call = _call(Lists)
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for rows in _ROWS:
        torch.testing.assert_close(program(rows), call.module(rows), equal_nan=True)

"""Another choice among values that are equal in eager is no error of a program; anything else stays one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from exportdoctor.core.records.outcome import Agreement
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import CallResult, run_calls
from exportdoctor.targets.sizes.other_sizes import repeat_to
from exportdoctor.worker.numbers.value_gap import axis_of_choice, is_tie
from exportdoctor.worker.prove.compare_calls import compare_calls
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.tied_choices import excuse_ties, is_tied

Outputs = list[torch.Tensor]


class Ranked(torch.nn.Module):
    """Indices of several kinds, one of them in another dtype, and rows of a table that they choose."""

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
        best = x.topk(3, dim=-1)
        return best.values, best.indices.to(torch.int32), x.argsort(-1), x.argmax(-1), x.min(0).indices, table[best[1]]


class Rows(torch.nn.Module):
    """Nothing shows which row was chosen but what stands in it."""

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return table[x.argmax(-1)]


class Kept(torch.nn.Module):
    """A call gives what the one before has chosen."""

    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(4, dtype=torch.int64))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        before = self.last.clone()
        self.last.copy_(x.max(-1).indices)
        return before + 0 * table[0, 0].to(torch.int64)


class InOrder(torch.nn.Module):
    """The order of equal values is asked for."""

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return x.sort(dim=-1, stable=True).indices


def inputs_of(seed: int, *, width: int = 9, kinds: int = 4) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    chance = torch.Generator().manual_seed(seed)
    whole = torch.randint(kinds, (4, width), generator=chance).float()
    return (whole, torch.randn(width, 2, generator=chance)), {}


def set_of(module: torch.nn.Module, *seeds: int) -> InputSet:
    calls = tuple(inputs_of(seed) for seed in seeds)
    return InputSet(title="drawn", kind="example", calls=calls, results=run_calls(module, calls))


def judge(module: torch.nn.Module, one: InputSet, answers: Sequence[CallResult], *, shows: bool = True) -> Agreement:
    """The row of a program that gives these answers, which is asked for its choices if it `shows` them."""
    plain = compare_calls(one, answers, tensors=True)
    found = (lambda _: answers) if shows else None
    (row,) = excuse_ties(module, [one], [plain], lambda other: compare_calls(other, answers, tensors=True), found)
    return row


def other_index(x: torch.Tensor, index: int, chance: random.Random, *, equal: bool) -> int:
    """An index of an equal value, or of another one."""
    places = [place for place in range(len(x)) if bool(x[place] == x[index]) == equal]
    return chance.choice(places)


def answer_of(one: InputSet, change: Callable[[Outputs], Outputs]) -> list[CallResult]:
    result = one.results[0]
    leaves = [result.output] if isinstance(result.output, torch.Tensor) else [*result.output]
    return [replace(result, output=change([leaf.clone() for leaf in leaves]))]


def chosen_anew(one: InputSet, chance: random.Random, outputs: Outputs) -> Outputs:
    """The outputs of Ranked, with a choice of its own among equal values for each kind of index."""
    (x, table), _ = one.inputs
    values, best, order, highest, lowest, _ = outputs
    for row in range(len(x)):
        for kept in (best, order):
            for value in set(x[row].tolist()):
                at = [place for place in range(kept.shape[1]) if x[row, int(kept[row, place])] == value]
                fits = [place for place in range(x.shape[1]) if x[row, place] == value]
                kept[row, at] = torch.tensor(chance.sample(fits, len(at)), dtype=kept.dtype)
        highest[row] = other_index(x[row], int(highest[row]), chance, equal=True)
    for column in range(x.shape[1]):
        lowest[column] = other_index(x[:, column], int(lowest[column]), chance, equal=True)
    return [values, best, order, highest, lowest, table[best.long()]]


@pytest.mark.parametrize("seed", range(12))
def test_any_choice_among_equal_values_is_right(seed: int) -> None:
    module, chance = Ranked(), random.Random(seed)
    one = set_of(module, seed)
    answers = answer_of(one, lambda outputs: chosen_anew(one, chance, outputs))
    assert not compare_calls(one, answers, tensors=True).holds
    row = judge(module, one, answers)
    assert (row.holds, is_tied(row), row.max_abs) == (True, True, 0)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("place", range(1, 6))
def test_one_wrong_index_among_ties_stays_an_error(seed: int, place: int) -> None:
    """Ties in all rows, and in one row an index of another value; or rows of the table that nothing has chosen."""
    module, chance = Ranked(), random.Random(seed)
    one = set_of(module, seed)
    (x, _), _ = one.inputs

    def spoil(outputs: Outputs) -> Outputs:
        made = chosen_anew(one, chance, outputs)
        row = chance.randrange(len(x))
        if place == 5:
            made[5][row] = made[5][row].flip(0) + 1
        elif place == 4:
            column = next(at for at in range(x.shape[1]) if len(set(x[:, at].tolist())) > 1)
            made[4][column] = other_index(x[:, column], int(made[4][column]), chance, equal=False)
        elif place == 3:
            made[3][row] = other_index(x[row], int(made[3][row]), chance, equal=False)
        else:
            made[place][row, 0] = other_index(x[row], int(made[place][row, 0]), chance, equal=False)
        return made

    row = judge(module, one, answer_of(one, spoil))
    assert (row.holds, is_tied(row)) == (False, False)


def test_one_index_twice_is_an_error_though_the_values_are_equal() -> None:
    module = Ranked()
    one = set_of(module, 0)
    (x, _), _ = one.inputs

    def spoil(outputs: Outputs) -> Outputs:
        row = next(row for row in range(4) if x[row, int(outputs[1][row, 0])] == x[row, int(outputs[1][row, 1])])
        outputs[1][row, 1] = outputs[1][row, 0]
        return outputs

    assert not judge(module, one, answer_of(one, spoil)).holds


@pytest.mark.parametrize(("apart", "holds"), [(0.0, True), (1e-6, False)])
def test_values_that_are_nearly_equal_are_no_tie(apart: float, holds: bool) -> None:
    module = Ranked()
    x = torch.tensor([[3.0, 1.0, 3.0 - apart, 2.0]])
    calls: tuple[Inputs, ...] = (((x, torch.randn(4, 2)), {}),)
    one = InputSet(title="near", kind="example", calls=calls, results=run_calls(module, calls))

    def change(outputs: Outputs) -> Outputs:
        outputs[3] = 2 - outputs[3]
        return outputs

    assert judge(module, one, answer_of(one, change)).holds == holds


@pytest.mark.parametrize("last", [False, True])
def test_what_a_choice_leads_to_is_judged_by_eager_with_that_choice(last: bool) -> None:
    """Equal scores of unlike rows: the row of the first or of the last is right, that of a lower score is not."""
    module = Rows()
    one = set_of(module, 3)
    (x, table), _ = one.inputs
    first = torch.stack([(row == row.max()).nonzero()[-1 if last else 0, 0] for row in x])
    wrong = first.clone()
    wrong[2] = int(x[2].argmin())
    rows = [judge(module, one, answer_of(one, lambda _, at=at: [table[at]])) for at in (first, wrong)]  # type: ignore[misc]
    assert [row.holds for row in rows] == [True, False]


@pytest.mark.parametrize("wrong", [False, True])
def test_in_each_of_several_calls_and_in_state(wrong: bool) -> None:
    """The second call gives what the first has chosen; a buffer has what the last one has chosen."""
    module = Kept()
    one = set_of(module, 1, 2, 3)
    chosen = []
    for call, _ in one.calls:
        chosen.append(torch.stack([(row == row.max()).nonzero()[-1, 0] for row in call[0]]))
    if wrong:
        chosen[1][0] = int(one.calls[1][0][0][0].argmin())
    given = [torch.zeros(4, dtype=torch.int64), *chosen[:2]]
    results = zip(one.results, given, chosen, strict=True)
    answers = [replace(result, output=[now], buffers={"last": left}) for result, now, left in results]
    assert not compare_calls(one, answers, tensors=True).holds
    for shows in (True, False):
        row = judge(module, one, answers, shows=shows)
        assert (row.holds, is_tied(row)) == (not wrong, not wrong)


def test_an_order_that_is_asked_for_is_not_free() -> None:
    module = InOrder()
    one = set_of(module, 4)
    (x, _), _ = one.inputs
    other = x.shape[1] - 1 - x.flip(-1).sort(dim=-1, stable=True).indices
    assert torch.equal(x.gather(1, other), x.sort(-1).values)
    assert not judge(module, one, answer_of(one, lambda _: [other])).holds


def test_a_row_that_differs_for_another_reason_is_as_it_was() -> None:
    module = torch.nn.Linear(3, 2)
    calls: tuple[Inputs, ...] = (((torch.randn(2, 3),), {}),)
    one = InputSet(title="linear", kind="example", calls=calls, results=run_calls(module, calls))
    answers = [replace(one.results[0], output=[one.results[0].output + 1])]
    plain = compare_calls(one, answers, tensors=True)
    assert judge(module, one, answers) == plain


def test_a_tie_is_along_the_dimension_of_the_choice() -> None:
    """All rows are one: along the columns any index gives an equal value, and none of them was chosen so."""
    x = torch.tensor([[3.0, 1.0, 2.0]]).expand(3, 3)
    wanted, found = x.argmax(-1), torch.tensor([1, 1, 1])
    assert axis_of_choice("aten.argmax.default", (x, -1), {}) == -1
    assert not is_tie("argmax", found, wanted, [x], axis=-1)
    assert is_tie("argmax", found, x.argmax(0), [x], axis=0)
    assert axis_of_choice("argmax", (x,), {}) == "flat"
    assert is_tie("argmax", torch.tensor(3), x.argmax(), [x], axis="flat")
    assert not is_tie("argmax", torch.tensor(4), x.argmax(), [x], axis="flat")
    assert axis_of_choice("topk", (x, 2), {"dim": 0}) == axis_of_choice("topk", (x, 2, 0), {}) == 0


@pytest.mark.parametrize("dimensions", [(0, 0), (0, 1), (1, 0), (0, 0, 0)])
def test_what_is_repeated_again_is_not_equal(dimensions: Sequence[int]) -> None:
    """Rows that were repeated twice with the same shares were equal, and so were the scores of any model for them."""
    grown = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    for dimension in dimensions:
        grown = repeat_to(grown, dimension, 2 * grown.shape[dimension])
    assert grown.unique().numel() == grown.numel()

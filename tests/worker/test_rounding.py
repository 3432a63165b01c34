"""A drawn set is left out where rounding alone explains the difference, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from exportdoctor.core.records.outcome import Agreement
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import run_calls
from exportdoctor.worker.prove.compare_calls import compare_calls
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.rounding import RoundingNoise, leave_out_rounding, widen_to_rounding

EPS = torch.finfo(torch.float32).eps


class Cancels(torch.nn.Module):
    """Numbers near 33, of which 33 is taken away: what is left of row 0 is of the size of their rounding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(8, 16)
        with torch.no_grad():
            self.table.weight[0] *= 1e-3

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (self.table(rows) + 100 / 3) - 100 / 3


def drawn(module: torch.nn.Module, rows: torch.Tensor) -> InputSet:
    calls: tuple[Inputs, ...] = (((rows,), {}),)
    return InputSet(
        title="drawn", kind="whole_numbers", calls=calls, results=run_calls(module, calls), same=True, made_up=True
    )


def row_of(one: InputSet, off_by: torch.Tensor | float) -> Agreement:
    """How a program compares that gives eager's answer and so much more."""
    result = one.results[0]
    return compare_calls(one, [replace(result, output=result.output + off_by)])


def is_left_out(module: torch.nn.Module, one: InputSet, row: Agreement) -> bool:
    sets, rows, said = leave_out_rounding(module, [one], [row])
    assert len(sets) == len(rows) == (0 if said else 1)
    assert not said or ("drawn" in said and "rounding" in said)
    return bool(said)


def test_a_program_that_differs_by_rounding_where_numbers_cancel_is_not_held_to_that_set() -> None:
    module = Cancels()
    one = drawn(module, torch.zeros(3, 8, dtype=torch.int64))
    otherwise = module.table(one.inputs[0][0])  # the same function, without the rounding of 33
    row = row_of(one, otherwise - one.results[0].output)
    assert not row.holds
    assert is_left_out(module, one, row)


@pytest.mark.parametrize("times", [40, 1000, 1e5])
def test_a_program_that_differs_by_more_than_rounding_is_held_to_it(times: float) -> None:
    module = Cancels()
    one = drawn(module, torch.zeros(3, 8, dtype=torch.int64))
    row = row_of(one, times * 33 * EPS)
    assert not row.holds
    assert not is_left_out(module, one, row)


@pytest.mark.parametrize("units", [1e3, 1e4, 1e5])
def test_where_nothing_cancels_every_difference_counts(units: float) -> None:
    module = torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.Linear(16, 16), torch.nn.Tanh()).eval()
    one = drawn(module, torch.randint(8, (3, 8)))
    row = row_of(one, units * EPS)
    assert row.holds or not is_left_out(module, one, row)


def test_a_known_set_is_never_left_out() -> None:
    module = Cancels()
    one = replace(drawn(module, torch.zeros(3, 8, dtype=torch.int64)), kind="example", made_up=False)
    assert not is_left_out(module, one, row_of(one, 33 * EPS))


def test_what_is_not_about_numbers_is_never_left_out() -> None:
    module = Cancels()
    one = drawn(module, torch.zeros(3, 8, dtype=torch.int64))
    row = compare_calls(one, [replace(one.results[0], output=one.results[0].output[:2])])
    assert row.trouble
    assert not is_left_out(module, one, row)


def test_noise_of_rounding_moves_what_is_computed_by_little_and_leaves_what_is_passed_on() -> None:
    values = torch.rand(100) + 1
    with RoundingNoise(16, seed=0):
        passed, computed = values.reshape(10, 10), values * 2
    assert torch.equal(passed.flatten(), values)
    apart = (computed / (values * 2) - 1).abs().max()
    assert 0 < apart <= 17 * EPS


class Deep(torch.nn.Module):
    """A residual network of many layers, whose products are summed in one piece or in two: the same function."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(layers))
        self.pieces, self.left_out = 1, -1

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, torch.nn.Linear)
            normed = torch.nn.functional.layer_norm(hidden, (64,))
            parts = zip(normed.chunk(self.pieces, -1), layer.weight.chunk(self.pieces, -1), strict=True)
            product = sum(rows @ weight.T for rows, weight in parts) + layer.bias
            hidden = hidden + torch.nn.functional.gelu(product) * (4.0 if number != self.left_out else 0.0)
        return hidden


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_through_many_layers_outputs_of_half_precision_are_held_to_rounding(dtype: torch.dtype) -> None:
    module = Deep(160).to(dtype)
    calls: tuple[Inputs, ...] = (((torch.randn(256, 64, dtype=dtype),), {}),)
    one = InputSet(title="example", kind="example", calls=calls, results=run_calls(module, calls), same=True)

    def widened(pieces: int, left_out: int) -> tuple[Agreement, Agreement]:
        module.pieces, module.left_out = pieces, left_out
        row = compare_calls(one, run_calls(module, calls))
        module.pieces, module.left_out = 1, -1
        (found,) = widen_to_rounding(module, [one], [row])
        return row, found

    before, after = widened(pieces=2, left_out=-1)
    assert after.holds
    if dtype is torch.bfloat16:
        assert not before.holds, "the dtype alone allows less"
        assert "rounding" in after.note
        assert after.tolerance > before.tolerance
    before, after = widened(pieces=1, left_out=40)
    assert not before.holds
    assert after == before


def test_sets_that_begin_with_the_same_inputs_share_what_rounding_gives() -> None:
    module = Deep(8).to(torch.bfloat16)
    asked: list[torch.nn.Module] = []
    inputs: Inputs = ((torch.randn(4, 64, dtype=torch.bfloat16),), {})
    other: Inputs = ((torch.randn(4, 64, dtype=torch.bfloat16),), {})
    sets = [
        InputSet(title="set", kind="values", calls=calls, results=run_calls(module, calls), same=True)
        for calls in ((inputs,), (inputs,) * 3, (other,))
    ]
    rows = [row_of(replace(one, calls=one.calls[:1], results=one.results[:1]), 1.0) for one in sets]
    assert not any(row.holds for row in rows)
    module.register_forward_pre_hook(lambda called, _: asked.append(called))
    found = widen_to_rounding(module, sets, rows)
    together = len(asked)
    asked.clear()
    assert found == [widen_to_rounding(module, [one], [row])[0] for one, row in zip(sets, rows, strict=True)]
    assert together == len(asked) * 2 // 3


def test_in_single_precision_no_tolerance_is_widened() -> None:
    module = Deep(64)
    calls: tuple[Inputs, ...] = (((torch.randn(8, 64),), {}),)
    one = InputSet(title="example", kind="example", calls=calls, results=run_calls(module, calls), same=True)
    row = row_of(one, 0.1)
    assert not row.holds
    assert widen_to_rounding(module, [one], [row]) == [row]


@pytest.mark.long
@pytest.mark.slow
def test_noise_leaves_out_zeros_that_have_no_memory() -> None:
    """In a process of its own: to compute with them below a mode ends it."""
    code = """
import torch
from exportdoctor.worker.prove.rounding import RoundingNoise

layer, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
with RoundingNoise(16, 1):
    torch.func.jvp(layer, (x,), (x,))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


class Small(torch.nn.Module):
    """What is left where large numbers cancel, and a tail probability, which is as exact as a large one."""

    def __init__(self, *, cancels: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.cancels = torch.nn.Linear(64, 8), cancels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x)
        return (y - self.one(x * 1.0000001)).mean(-1) if self.cancels else torch.erfc(6 + y.abs())


def small_set(module: torch.nn.Module) -> InputSet:
    torch.manual_seed(1)
    calls: tuple[Inputs, ...] = (((torch.randn(4, 64),), {}),)
    return InputSet(title="the example", kind="example", calls=calls, results=run_calls(module, calls), same=True)


def test_a_small_output_is_right_where_rounding_of_larger_numbers_moves_eagers_as_far() -> None:
    module = Small(cancels=True).eval()
    one = small_set(module)
    row = row_of(one, 5e-8)
    assert one.results[0].output.abs().max() < 1e-6
    assert not row.holds
    (widened,) = widen_to_rounding(module, [one], [row])
    assert widened.holds
    assert "rounding" in widened.note


@pytest.mark.parametrize("share", [-1.0, -0.5, 0.01])
def test_a_small_output_is_wrong_where_nothing_explains_the_difference(share: float) -> None:
    """A file whose every answer was zero was "Verified": the outputs were below what is allowed of larger ones."""
    module = Small(cancels=False).eval()
    one = small_set(module)
    row = row_of(one, share * one.results[0].output)
    assert not row.holds
    assert widen_to_rounding(module, [one], [row]) == [row]


class Drifts(torch.nn.Module):
    """A counter, by which the answer drifts a little."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 1e-8 + 1e-7 * self.calls


@pytest.mark.parametrize(("wrong", "holds"), [(2, False), (0, True)])
def test_the_later_calls_of_a_set_are_held_to_their_own_size(wrong: int, holds: bool) -> None:
    module = Drifts()
    inputs: Inputs = ((torch.ones(3),), {})
    calls = (inputs, inputs, inputs)
    one = InputSet(title="three times", kind="called_again", calls=calls, results=run_calls(module, calls), same=True)
    answers = [one.results[0]] * wrong + [*one.results[wrong:]]
    (row,) = widen_to_rounding(module, [one], [compare_calls(one, answers)])
    assert row.holds is holds
    assert row.call == (0 if holds else 1)


def test_operands_that_are_rounded_are_copies() -> None:
    x = torch.ones(4)
    with RoundingNoise(16, 0, operands=True):
        y = x.view(2, 2).matmul(torch.eye(2))
        x.add_(0.0)
    assert not torch.equal(y, torch.ones(2, 2))
    torch.testing.assert_close(x, torch.ones(4))

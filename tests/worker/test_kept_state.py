"""State that eager keeps between its calls: where a program does not keep it, the value is named; what cannot be put
back between runs is named, too."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from exportdoctor.core.records.outcome import Agreement
from exportdoctor.shims import ExportCall
from exportdoctor.shims.torch_export import export_program
from exportdoctor.targets.eager import run_calls
from exportdoctor.worker.prove.compare_calls import compare_calls
from exportdoctor.worker.prove.cure_inputs import cure_inputs
from exportdoctor.worker.prove.fixed_numbers import name_fixed_numbers
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.repeated_eager import why_unlike


class Position:
    at = 0


class Held(nn.Module):
    """Counts its calls in something that it holds."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.held, Position):
            self.held.at += 1
            return x * self.held.at
        self.held["a"]["b"] += 1
        return x * int(self.held["a"]["b"])


class Written(nn.Module):
    """Counts its calls in a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(1)
        return x * self.total


class Shared(nn.Module):
    """Counts the calls of all modules of its class."""

    calls: ClassVar[int] = 0

    def forward(self, x: Tensor) -> Tensor:
        Shared.calls += 1
        return x * Shared.calls


class Iterating(nn.Module):
    """Takes a number more at each call."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return x * int(self.held.readline() if isinstance(self.held, io.IOBase) else next(self.held))


def three_calls(module: nn.Module) -> tuple[InputSet, Any]:
    """Three equal calls with eager's results, and a program made after them."""
    call = ExportCall(module=module, args=(torch.ones(3),))
    (one,) = [one for one in cure_inputs(call) if one.kind == "called_again"]
    return one, export_program(call).module()


@pytest.mark.parametrize(("held", "name"), [({"a": {"b": 0}}, "held"), (Position(), "held.at")])
def test_a_number_inside_what_a_module_holds_is_named_where_a_program_has_fixed_it(held: Any, name: str) -> None:
    module = Held(held)
    one, program = three_calls(module)

    def compare(one: InputSet) -> Sequence[Agreement]:
        return [compare_calls(one, run_calls(program, one.calls))]

    (row,) = name_fixed_numbers(compare(one), [one], module, compare)
    assert row.trouble == (
        f"call 2 of 3 differs by 1.0e+00: eager keeps state in {name}, and the program has the value of the export at "
        "every call"
    )


def test_an_export_leaves_a_tensor_that_is_written_to_as_it_was_and_the_program_counts_on_from_there() -> None:
    module = Written()
    one, program = three_calls(module)
    assert torch.equal(module.total, torch.zeros(3))
    row = compare_calls(one, run_calls(program, one.calls))
    assert row.holds
    assert row.note.startswith("eager changes total with each call: 3 calls in a row agree")


def test_one_of_two_values_that_change_is_not_named_where_it_is_not_known_which_is_why() -> None:
    module = Held(Position())
    module.log: list[int] = []  # type: ignore[misc, assignment]
    module.register_forward_pre_hook(lambda module, _: module.log.append(1))
    one, program = three_calls(module)

    def compare(one: InputSet) -> Sequence[Agreement]:
        return [compare_calls(one, run_calls(program, one.calls))]

    (row,) = name_fixed_numbers(compare(one), [one], module, compare)
    assert row.trouble == "call 2 of 3 differs by 1.0e+00: eager keeps state"


class Seeded(nn.Module):
    """Draws the same numbers at each call, which a program does not."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return x + torch.randn(3)


def test_a_program_that_does_not_repeat_what_eager_repeats_is_not_told_as_state_of_eager() -> None:
    one, program = three_calls(Seeded())
    answers = run_calls(program, one.calls)
    first = [replace(answers[0], output=one.results[0].output), *answers[1:]]
    assert compare_calls(one, first).trouble.endswith(
        ": eager gives the same for equal calls, and the program does not"
    )


def test_a_number_of_a_class_that_is_another_one_after_each_call_is_named() -> None:
    module = Shared()
    first, again = (run_calls(module, [((torch.ones(3),), {})], notes_state=True)[0] for _ in range(2))
    assert why_unlike(module, first, again) == (
        "eager itself gives other numbers when it is called again, and each call changes Shared.calls"
    )
    assert why_unlike(module, first, first) == ""


@pytest.mark.slow
@pytest.mark.parametrize("held", [iter([1, 2, 3, 4, 5]), iter(range(1, 9)), iter("12345"), io.StringIO("1\n2\n3\n4\n")])
def test_an_iterator_over_a_sequence_and_a_file_are_put_back(held: Any) -> None:
    module = Iterating(held)
    first, again = (run_calls(module, [((torch.ones(3),), {})] * 2, notes_state=True) for _ in range(2))
    assert [float(one.output[0]) for one in (*first, *again)] == [1, 2, 1, 2]
    one, program = three_calls(module)
    (row,) = name_fixed_numbers([compare_calls(one, run_calls(program, one.calls))], [one], module, lambda _: [])
    assert "held" in row.trouble + row.note


def test_a_file_in_memory_is_as_it_was() -> None:
    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.file = io.StringIO("ab")
            self.file.seek(2)

        def forward(self, x: Tensor) -> Tensor:
            self.file.write("c")
            return x * len(self.file.getvalue())

    module = Noting()
    for _ in range(2):
        (result,) = run_calls(module, [((torch.ones(1),), {})], notes_state=True)
        assert float(result.output) == 3
    assert (module.file.getvalue(), module.file.tell()) == ("ab", 2)


@pytest.mark.parametrize(
    "held", [itertools.count(1), itertools.cycle([1, 2, 3]), (n for n in range(1, 99)), map(abs, range(1, 99))]
)
def test_an_iterator_that_cannot_be_put_back_is_named(held: Any) -> None:
    module = Iterating(held)
    call: list[tuple[Any, dict[str, Any]]] = [((torch.ones(3),), {})]
    said = why_unlike(module, *run_calls(module, call, notes_state=True), *run_calls(module, call, notes_state=True))
    assert said.endswith("each call changes held")

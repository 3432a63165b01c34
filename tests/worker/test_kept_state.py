"""State that eager keeps between its calls: where a program does not keep it, the value is named; what cannot be put
back between runs is named, too."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
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


def rows_of(module: nn.Module, args: tuple[Any, ...], program: Any = None) -> list[Agreement]:
    call = ExportCall(module=module, args=args)
    sets = cure_inputs(call)
    ready = program if program is not None else export_program(call).module()
    return [compare_calls(one, run_calls(ready, one.calls)) for one in sets]


@pytest.mark.slow
def test_buffers_of_which_one_name_ends_in_another_are_not_confused() -> None:
    """`1.0.running_mean` ends in `0.running_mean`, which was told to be lost, and twice."""
    module = nn.Sequential(nn.BatchNorm1d(4, momentum=0.1), nn.Sequential(nn.BatchNorm1d(4), nn.ReLU())).train()
    rows = rows_of(module, (torch.randn(3, 4),))
    assert all(row.holds for row in rows), [row.trouble for row in rows]


@pytest.mark.slow
def test_names_that_end_alike_are_told_apart_in_a_wrapper_too() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4, momentum=0.1), nn.Sequential(nn.BatchNorm1d(4), nn.ReLU())).train()
    x = torch.randn(3, 4)
    program = export_program(ExportCall(module=nn.Sequential(module), args=(x,))).module()
    rows = rows_of(module, (x,), program)
    assert all(row.holds for row in rows), [row.trouble for row in rows]


class Tied(nn.Module):
    """One buffer with two names."""

    base: Tensor
    alias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("base", torch.zeros(4))
        self.register_buffer("alias", self.base)

    def forward(self, x: Tensor) -> Tensor:
        self.alias.add_(x.sum(0))
        return x + self.base


@pytest.mark.slow
def test_a_buffer_with_two_names_is_kept_by_a_program_and_by_its_file(tmp_path: Path) -> None:
    module = Tied()
    x = torch.randn(3, 4)
    file = tmp_path / "tied.pt2"
    torch.export.save(export_program(ExportCall(module=module, args=(x,))), file)
    for program in (None, torch.export.load(file).module()):
        rows = rows_of(module, (x,), program)
        assert all(row.holds for row in rows), [row.trouble for row in rows]


class Growing(nn.Module):
    """An observer of torch.ao: its buffer has no elements before the first call."""

    least: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("least", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.least.numel() == 0:
            self.least.resize_(x.shape[1])
            self.least.copy_(x.amin(0))
        return x - self.least


@pytest.mark.slow
def test_a_buffer_that_a_call_resizes_can_be_put_into_a_file_afterwards(tmp_path: Path) -> None:
    """It kept the memory, with which torch's file cannot be read."""
    module = Growing()
    run_calls(module, [((torch.randn(3, 4),), {})] * 2)
    assert module.least.shape == (0,)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt")["least"].shape == (0,)
    torch.export.save(torch.export.export(Adding(module.least), (torch.randn(3, 4),)), tmp_path / "a.pt2")
    assert torch.export.load(tmp_path / "a.pt2").state_dict["least"].shape == (0,)


class Adding(nn.Module):
    def __init__(self, least: Tensor) -> None:
        super().__init__()
        self.register_buffer("least", least)

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Delayed(nn.Module):
    """What it keeps is None before the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        made = x if self.last is None else x + self.last
        self.last = x
        return made


def test_a_tensor_in_place_of_none_is_named_with_its_line() -> None:
    module = Delayed()
    one, program = three_calls(module)

    def compare(one: InputSet) -> Sequence[Agreement]:
        return [compare_calls(one, run_calls(program, one.calls))]

    (row,) = name_fixed_numbers(compare(one), [one], module, compare)
    assert re.search(r"eager keeps state in last \(test_kept_state.py:\d+\)", row.trouble)
    assert [line.source for line in row.at] == ["self.last = x"]

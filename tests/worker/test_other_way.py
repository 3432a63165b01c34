"""Where eager goes another way through the model's code than an export went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from exportdoctor.core.records.outcome import Agreement
from exportdoctor.targets.eager import run_calls
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.other_way import name_other_way


class Compiling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_exporting() else x * 3


class Typed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is not torch.Tensor:
            return x * 2
        return self.scale(x)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), Typed())

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


class Straight(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x * 2


class Alternates(nn.Module):
    """Each call goes another way, in eager too."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Alternates.calls += 1
        return x * 2 if Alternates.calls % 2 else x * 3


class Texted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(f"{x.shape[0]}")


def noted(module: nn.Module, sizes: Any = None) -> str:
    inputs = ((torch.ones(3, 4),), dict[str, Any]())
    one = InputSet(title="the example", kind="example", calls=(inputs,), results=run_calls(module, [inputs]))
    wrong = Agreement(inputs="the example", kind="example", max_abs=1.0)
    (row,) = name_other_way([wrong], [one], module, lambda: torch.export.export(module, *inputs, dynamic_shapes=sizes))
    return row.note


@pytest.mark.parametrize(
    ("module", "condition"),
    [
        (Compiling(), "torch.compiler.is_exporting()"),
        (Typed(), "type(x) is not torch.Tensor"),
        (Inner(), "type(x) is not torch.Tensor"),
    ],
)
def test_the_condition_at_which_they_part_is_named_with_its_line(module: nn.Module, condition: str) -> None:
    lines = Path(__file__).read_text().splitlines()
    line = next(at for at, text in enumerate(lines, 1) if condition in text)
    assert noted(module) == (
        f"at {Path(__file__).name}:{line} eager goes another way than the export went ({condition})"
    )


@pytest.mark.parametrize("module", [Straight(), Alternates()])
def test_nothing_is_said_where_they_do_not_part_or_eager_parts_from_itself(module: nn.Module) -> None:
    assert noted(module) == ""


def test_a_text_of_a_dynamic_size_is_named() -> None:
    lines = Path(__file__).read_text().splitlines()
    line = next(at for at, text in enumerate(lines, 1) if 'len(f"' in text)
    said = noted(Texted(), ({0: torch.export.Dim.DYNAMIC},))
    assert said.startswith(f"at {Path(__file__).name}:{line} the text of a size is made")
    assert noted(Texted()) == "", "the size is a number"


def test_nothing_is_asked_where_every_row_holds() -> None:
    row = Agreement(inputs="the example", kind="example")
    assert name_other_way([row], [], Straight(), lambda: 1 / 0) == [row]

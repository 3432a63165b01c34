"""Inputs of a tensor subclass with functions of its own: copied with their class, compared by their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from exportdoctor.targets.eager import copy_inputs
from exportdoctor.torch_internals.tensor_subclasses import as_plain_tensor, has_own_functions, name_with_functions
from scanning import scan_file


class Named(torch.Tensor):
    label: str


class Shifted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return 7


def test_a_copy_has_the_class_the_attributes_and_memory_of_its_own() -> None:
    one = torch.arange(3.0).as_subclass(Named)
    one.label = "a"
    (other,), _ = copy_inputs(((one,), {}))
    assert type(other) is Named
    assert other.label == "a"
    assert torch.equal(as_plain_tensor(other), torch.arange(3.0))
    assert other.data_ptr() != one.data_ptr()


def test_functions_of_the_class_change_no_copy_and_no_plain_tensor() -> None:
    one = torch.zeros(3).as_subclass(Shifted)
    other = copy_inputs(one)
    assert as_plain_tensor(other).tolist() == [0, 0, 0]
    assert type(as_plain_tensor(other)) is torch.Tensor


@pytest.mark.parametrize(
    ("value", "has_some", "name"),
    [
        (torch.ones(1), False, ""),
        (torch.nn.Parameter(torch.ones(1)), False, ""),
        (torch.ones(1).as_subclass(Named), True, ""),
        (torch.ones(1).as_subclass(Shifted), True, "Shifted"),
        (3, False, ""),
    ],
)
def test_a_class_is_named_where_it_has_a_function_of_its_own(value: Any, *, has_some: bool, name: str) -> None:
    assert has_own_functions(value) is has_some
    assert name_with_functions(value) == name


MODEL = """
import torch
from torch import nn

class Shifted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_function__(func, types, args, kwargs or {})
        return made + 100 if getattr(func, "__name__", "") == "mul" else made

class Model(nn.Module):
    def forward(self, x):
        return torch.mul(x, 2)

def build():
    return Model(), (torch.randn(3, 4).as_subclass(Shifted),)
"""


@pytest.mark.slow
def test_a_program_that_lacks_the_functions_is_told_as_wrong_for_that(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (finding,) = scan_file(tmp_path / "model.py").findings
    assert finding.kind == "numbers"
    assert "an input is a Shifted, whose __torch_function__ runs in eager and not in the export" in (
        finding.exception.message
    )

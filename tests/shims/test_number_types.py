"""A number that a shim keeps symbolic is to the model's code what it is in eager, a number of Python's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.shims.rules.code.number_types import is_instance

_FREE = {0: Dim.DYNAMIC}


def longest(lengths: Tensor) -> int:
    most = 0
    for length in lengths.tolist():
        most = max(most, length)
    return most


class Scaled(nn.Module):
    """What a number is decides what is done with it."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        most = longest(lengths)
        return x * most if isinstance(most, int) else x - most


class ScaledByRead(nn.Module):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        most = lengths.max().item()
        return x * most if isinstance(most, int | float) else x - most


@pytest.mark.parametrize(("module", "shim"), [(Scaled(), "hoist"), (ScaledByRead(), "hoist-numbers")])
def test_a_hoisted_number_is_an_int_for_the_code_behind_it(module: nn.Module, shim: str) -> None:
    def inputs(*lengths: int) -> tuple[Tensor, Tensor]:
        return torch.randn(len(lengths), 4), torch.tensor(lengths)

    call = ExportCall(module=module, args=inputs(2, 3), dynamic_shapes=(_FREE, _FREE))
    with apply_shims([find(shim)], call) as changed:
        program = export_program(changed).module()
    for given in (inputs(1, 2, 3, 4), inputs(2, 2, 3)):
        args, kwargs = changed.convert((given, {}))
        assert torch.equal(program(*args, **kwargs), module(*given))


class Capped(nn.Module):
    """A number that is checked, and then used by its class."""

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        number = count.item()
        if count.item() < 0:
            raise ValueError("negative")
        return x * number if isinstance(number, int) else x - 1


def test_a_number_that_is_checked_is_an_int() -> None:
    call = ExportCall(module=Capped(), args=(torch.ones(5, 2), torch.tensor(2)), dynamic_shapes=(_FREE, None))
    with apply_shims([find("check-as-assertion")], call) as changed:
        program = export_program(changed).module()
    assert torch.equal(program(torch.ones(7, 2), torch.tensor(3)), torch.full((7, 2), 3.0))


def test_a_length_is_an_int_for_a_function_of_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "caps_of_lengths.py").write_text(
        "def cap(rows):\n    return 3 if isinstance(rows, int) and rows > 3 else rows\n"
    )
    (tmp_path / "capped_lengths.py").write_text(
        "import torch\nimport caps_of_lengths\n\n\nclass Capped(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x * caps_of_lengths.cap(len(x))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("capped_lengths").Capped()
    call = ExportCall(module=module, args=(torch.ones(5, 2),), dynamic_shapes=(_FREE,))
    with apply_shims([find("len-as-size")], call) as changed:
        program = export_program(changed).module()
    assert torch.equal(program(torch.ones(7, 2)), torch.full((7, 2), 3.0))


class Named(nn.Module):
    """A table by the text of a size, as caches by the size of a picture are."""

    def __init__(self, say: Callable[[str], Any]) -> None:
        super().__init__()
        self.say = say

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        self.say(f"{rows} rows")
        return x * {"7": 2}.get(f"{rows}", 1)


class Told(Named):
    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        self.say(f"{rows} rows")
        return x * rows


def test_the_text_of_a_length_fixes_it_but_for_a_message() -> None:
    heard: list[str] = []
    call = ExportCall(module=Told(heard.append), args=(torch.ones(5, 2),), dynamic_shapes=(_FREE,))
    with apply_shims([find("len-as-size")], call) as changed:
        program = export_program(changed).module()
    assert torch.equal(program(torch.ones(7, 2)), torch.full((7, 2), 7.0))
    assert heard
    call = replace(call, module=Named(heard.append))
    with apply_shims([find("len-as-size")], call) as changed, pytest.raises(Exception, match="5"):
        export_program(changed)


def test_whatever_else_is_asked_for_is_what_it_is() -> None:
    assert is_instance(True, int)
    assert is_instance(2, float | int)
    assert not is_instance("2", int)
    assert not is_instance(torch.ones(1), (int, float))
    with pytest.raises(TypeError):
        is_instance(2, "int")

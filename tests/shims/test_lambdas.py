"""Lambdas that modules hold are rewritten as functions are, where each is the only one to begin on its line."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.edits.edited_code import edit_shim
from exportdoctor.shims.edits.line_edits import line_edits
from exportdoctor.shims.rules.code.code_swap import compile_for, definition_of
from exportdoctor.targets.factory.factory_file import import_factory_file


def call_of(module: nn.Module) -> ExportCall:
    torch.manual_seed(0)
    return ExportCall(module=module.eval(), args=(torch.randn(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))


class Held(nn.Module):
    """In attributes, of which one has a default and closes over the module; in a list, a dict, and on the class."""

    picked = staticmethod(lambda x: x + 5 if x.min() < -1 else x)

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.__scale = nn.Linear(4, 4), 3
        self.first = lambda x: x * 2 if x.sum() > 0 else x
        self.second = lambda x, times=2: (
            self.lin(x) * times
            if x.max() > 1
            else x - self.__scale
        )  # fmt: skip
        self.several = [
            lambda x: x.abs() if x.sum() > 1 else x,
            lambda x: self.first(x) if x.max() > 2 else x + 1,
        ]
        self.named = {"last": lambda x: x - 1 if x.min() > -2 else x}

    def forward(self, x: Tensor) -> Tensor:
        for one in self.several:
            x = one(x)
        return self.first(x) + self.second(x) + self.named["last"](x) + self.picked(x)


class OfOneCode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = map(self.make, (-3, 2))

    @staticmethod
    def make(limit: int) -> Callable[[Tensor], Tensor]:
        return lambda x: x * limit if x.sum() > limit else x - limit

    def forward(self, x: Tensor) -> Tensor:
        return self.low(x) + self.high(x)


class MadeAnew(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        double = lambda y: y * 2 if y.sum() > 0 else y  # noqa: E731
        return double(x) + double(-x)  # type: ignore[no-any-return]


def with_forward_of_its_own() -> nn.Module:
    module = nn.Identity()
    module.forward = lambda x: x * 2 if x.sum() > 0 else x  # type: ignore[method-assign, assignment]
    return module


@pytest.mark.slow
@pytest.mark.parametrize("make", [Held, OfOneCode, MadeAnew, with_forward_of_its_own])
def test_a_branch_in_a_lambda_becomes_a_choice(make: Callable[[], nn.Module]) -> None:
    call = call_of(make())
    with torch.no_grad(), apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
        for scale, shift in itertools.product((0.5, 1.0, 3.0), (-3.0, -1.0, 0.0, 1.0, 3.0)):
            x = torch.randn(4, 4) * scale + shift
            torch.testing.assert_close(program(x), call.module(x))


class Writing(nn.Module):
    """What an arm calls is a lambda, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        seen = self.get_buffer("seen")
        self.note = lambda x: seen.add_(x.mean(0))
        self.act = lambda x: x + self.note(x) if x.sum() > 0 else x

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)  # type: ignore[no-any-return]


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = lambda x: torch.rand_like(x) if x.sum() > 0 else x

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)  # type: ignore[no-any-return]


class TwoOnOneLine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (lambda x: x * 2 if x.sum() > 0 else x), (lambda x: x)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x))


@pytest.mark.parametrize("make", [Writing, Drawing, TwoOnOneLine])
def test_a_lambda_that_does_more_or_stands_beside_another_is_left_alone(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(NotApplicable), apply_shims([find("branch-as-where")], call_of(make())):
        pass


def test_the_definition_of_a_lambda_is_that_of_the_code_that_runs(tmp_path: Path) -> None:
    file = tmp_path / "held.py"
    file.write_text("def make(k):\n    return lambda x, *y, z=1, **w: [one + k for one in x] if z else (y, w)\n")
    made = import_factory_file(file).make(2)
    node = definition_of(made)
    assert node is not None
    code = compile_for(made, node)
    assert code is not None
    assert ast.unparse(node.body[0]) == "return [one + k for one in x] if z else (y, w)"
    wanted, calls = made([1, 2]), [((), {"z": 0}), ((4,), {"z": 0, "q": 1}), ((), {"z": 2})]
    expected = [made([1], *args, **named) for args, named in calls]
    made.__code__ = code
    assert made([1, 2]) == wanted
    assert [made([1], *args, **named) for args, named in calls] == expected
    fresh = import_factory_file(file).make(2)
    file.write_text(file.read_text().replace("one + k", "one - k"))
    assert definition_of(fresh) is None, "the file has another lambda there by now"
    assert definition_of(eval("lambda x: x")) is None


HELD = """import torch
from torch import nn


class Box:
    def __init__(self, held):
        self.held = held


class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = HOW(lambda x: x * 2 if x.sum() > 0 else x)

    def forward(self, x):
        return getattr(self.act, "held", self.act)(x)
"""


def edited(text: str, file: Path) -> Any:
    """The shim that runs the first rewrite of the lambda's line."""
    line = next(number for number, one in enumerate(text.splitlines(), 1) if "lambda" in one)
    first, *_ = line_edits(text, "data_dependent_guard", [line])
    return edit_shim(id="edit", title=first.title, file=str(file), before=text, after=first.text)


@pytest.mark.parametrize("how", ["", "Box"])
def test_an_edit_of_a_lambda_runs_where_a_module_holds_it(how: str, tmp_path: Path) -> None:
    """Story: `__init__` ran again nowhere, and the rewrite was said to have been tried in vain."""
    file = tmp_path / "held.py"
    file.write_text(text := HELD.replace("HOW", how))
    call = call_of(import_factory_file(file).Held())
    shim = edited(text, file)
    if how:
        with pytest.raises(NotApplicable, match=r"does not run Held\.__init__"), apply_shims([shim], call) as given:
            export_program(given)
        return
    before = call.module.act.__code__  # type: ignore[union-attr]
    with apply_shims([shim], call) as given:
        program = export_program(given).module()
    assert call.module.act.__code__ is before  # type: ignore[union-attr]
    for x in (torch.ones(2, 4), -torch.ones(5, 4)):
        torch.testing.assert_close(program(x), call.module(x))


def test_the_operands_of_a_cond_in_a_lambda_are_its_own_parameters() -> None:
    text = HELD.replace("HOW", "")
    _, cond = line_edits(text, "data_dependent_guard", [text[: text.index("lambda")].count("\n") + 1])
    assert "torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x.clone(), (x,))" in cond.text

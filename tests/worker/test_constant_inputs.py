"""Inputs of submodules that no program takes: they are values of Python, as in the whole model."""

from __future__ import annotations

import enum
import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.worker.capture.constant_inputs import hold_constant_inputs
from scanning import scan_file


class How(enum.Enum):
    TWICE = 2


class Taking(nn.Module):
    def forward(self, x: Any, dtype: Any, pair: Any, *, act: Any = None, how: Any = None) -> Any:
        return act(x.to(dtype)) * how["times"][0].value + pair[1]


def test_a_module_with_such_inputs_exports_with_dynamic_sizes_and_is_as_it_was() -> None:
    module, x = Taking(), torch.randn(3, 4)
    args = (x, torch.float64, [torch.device("cpu"), x.clone()])
    kwargs = {"act": torch.tanh, "how": {"times": (How.TWICE,)}}
    wanted, signature = module(*args, **kwargs), inspect.signature(module.forward)
    with pytest.raises(Exception, match="Unsupported input type"):
        export(module, args, kwargs, strict=False)
    free = {0: Dim.DYNAMIC}
    shapes = {"x": free, "dtype": None, "pair": [None, free], "act": None, "how": {"times": (None,)}}
    with hold_constant_inputs(module, args, kwargs) as (given, named):
        assert given[1:] == (None, [None, args[2][1]])
        assert named == {"act": None, "how": {"times": (None,)}}
        assert inspect.signature(module.forward) == signature
        program = export(module, given, named, dynamic_shapes=shapes, strict=False)
    assert "forward" not in vars(module)
    torch.testing.assert_close(program.module()(*given, **named), wanted)


class Held:
    def __init__(self) -> None:
        self.value = torch.ones(2)


def test_what_a_program_takes_and_objects_of_other_classes_are_given_as_they_are() -> None:
    module, held = nn.Linear(2, 2), Held()
    args = (torch.ones(2), 1, 2.0, True, "a", None, held, {"a": [held]})
    with hold_constant_inputs(module, args, {"more": held}) as (given, named):
        assert given is args
        assert named == {"more": held}
        assert "forward" not in vars(module)


def closure_of(value: Any) -> Any:
    return lambda x: x * value


def test_what_may_have_been_made_with_the_examples_sizes_is_given_as_it_is() -> None:
    """It is another one for other sizes, and a verdict would be about the example's."""
    module, x = nn.Linear(2, 2), torch.ones(2)
    sized = (range(3), slice(0, 5), partial(torch.add, 3), closure_of(7), closure_of(x), lambda y, n=4: y * n)
    fixed = (
        slice(None),
        slice(1, None),
        partial(torch.add, alpha=0.5),
        closure_of("a"),
        closure_of(torch.tanh),
        torch.add,
    )
    with hold_constant_inputs(module, (x, *sized, *fixed), {}) as (given, _):
        assert given == (x, *sized, *(None for _ in fixed))


MODEL = """
import torch
from torch import nn

class Cast(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x, dtype=None, place=None, act=None):
        return act(self.layer(x.to(dtype=dtype, device=place)))

class Rows(nn.Module):
    def forward(self, x):
        return torch.stack([row * 2 for row in x])

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cast, self.rows = Cast(), Rows()
    def forward(self, x):
        return self.rows(self.cast(x, dtype=x.dtype, place=x.device, act=torch.tanh))

def build():
    return Model().eval(), (torch.randn(3, 4),), {}, {"x": {0: torch.export.Dim.DYNAMIC}}

def root():
    return Cast().eval(), (torch.randn(3, 4),), {"dtype": torch.float32, "act": torch.tanh}
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_submodule_does_not_fail_by_what_its_caller_gives_it(tmp_path: Path) -> None:
    """It was told to fail by its dtype, though the model exports as far as that goes."""
    path = tmp_path / "casting.py"
    path.write_text(MODEL)
    report = scan_file(path)
    assert [(one.module, one.kind) for one in report.findings] == [("rows", FailureKind.DYNAMIC_DIM_SPECIALISED)]
    assert [one.fqn for one in report.parts[0].modules if one.status == "pass"] == ["cast", "cast.layer"]
    (finding,) = scan_file(path, factory="root").findings
    assert "Unsupported input type" in finding.exception.message
